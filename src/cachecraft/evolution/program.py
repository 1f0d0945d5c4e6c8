"""When are two policies the same? By program, whatever its layout and names; by behaviour, whatever its program.

Both are recognised before a duplicate costs an evaluation. Nothing here runs a program: what it kept on the fixed
probe comes from outside, as masks.
"""

from __future__ import annotations

import ast
import copy
import functools
import hashlib
import re
from collections.abc import Iterable, Sequence

from torch import Tensor

from cachecraft.policy.source import CONTRACT


def lines_of(source: str) -> list[str]:
    """The lines of a program with their ends, divided where Python divides them (unlike ``str.splitlines``)."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", source)


def canonical(source: str) -> str:
    """The program without what does not matter.

    That is layout, comments, docstrings, annotations, unused definitions, the order of definitions, and the names of
    locals, parameters, helpers and imports.

    Args:
        source: A policy that parses.

    Returns:
        Its canonical text; equal for programs that differ in nothing else.

    Raises:
        SyntaxError: It does not parse.
    """
    tree = ast.parse(source)
    imported = _imports(tree)
    defined = {name: node for node in tree.body for name in _defines(node)}
    order = _reachable(defined)
    names = {name: f"d{index}" for index, name in enumerate(order) if name not in CONTRACT}
    names |= {name: dotted for name, dotted in imported.items() if name not in defined}
    by_keyword = {
        word.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords if word.arg
    }
    written = []
    for name in order:
        node = copy.deepcopy(defined[name])
        _Bare().visit(node)
        local = _locals(node, taken=set(names) | set(CONTRACT), public=set() if name in CONTRACT else by_keyword)
        _Renamed(names | local).visit(node)
        written.append(ast.unparse(node))
    return "\n".join(written)


@functools.lru_cache(maxsize=4096)  # a search asks for the same programs again and again, at some milliseconds each
def program_id(source: str) -> str:
    """Content hash of the canonical program, 32 hex digits.

    Raises:
        SyntaxError: It does not parse.
    """
    return hashlib.sha256(canonical(source).encode()).hexdigest()[:32]


def behaviour_id(masks: Iterable[Sequence[Tensor]]) -> str:
    """Content hash of what a policy kept, 32 hex digits.

    Args:
        masks: For each probe and budget in a fixed order the kept entries, a (G, T) bool tensor for each layer.
    """
    digest = hashlib.sha256()
    for layers in masks:
        for mask in layers:
            digest.update(repr(tuple(mask.shape)).encode())
            digest.update(mask.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def _imports(tree: ast.Module) -> dict[str, str]:
    """Bound name -> what it stands for, as a dotted name."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                found[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _defines(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return [node.target.id]
    return []


def _reachable(defined: dict[str, ast.stmt]) -> list[str]:
    """Definitions that the contract's functions reach, in the order in which they are first mentioned."""
    order: list[str] = []
    waiting = [name for name in reversed(tuple(CONTRACT)) if name in defined]
    while waiting:
        name = waiting.pop()
        if name in order:
            continue
        order.append(name)
        mentioned = [each.id for each in ast.walk(defined[name]) if isinstance(each, ast.Name) and each.id in defined]
        waiting += [each for each in reversed(mentioned) if each not in order]
    return order


def _locals(node: ast.AST, taken: set[str], public: set[str]) -> dict[str, str]:
    """New names for what a definition binds inside, in the order of binding; keyword arguments of calls stay."""
    bound: list[str] = []
    for each in ast.walk(node):
        if isinstance(each, ast.arg) and each.arg not in public:
            bound.append(each.arg)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            bound.append(each.id)
    return {name: f"v{index}" for index, name in enumerate(dict.fromkeys(bound)) if name not in taken}


class _Bare(ast.NodeTransformer):
    """Drops docstrings and annotations."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        if ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        return node if node.value is None else ast.Assign([node.target], node.value, lineno=0)


class _Renamed(ast.NodeTransformer):
    """Gives every name its canonical one."""

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self._names.get(node.arg, node.arg)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.name = self._names.get(node.name, node.name)
        return self.generic_visit(node)
