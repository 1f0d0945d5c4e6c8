"""Writes a policy that was taken apart as a person would: named signals, one sum, only what is used, black's layout.

The inverse of form.py. What a part of a score is called and how it is described comes from the vocabulary, or from the
names that the program had.
"""

from __future__ import annotations

import ast
import builtins
import copy
import keyword
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from cachecraft.evolution.proposers.form import Form, called, key, subexpressions
from cachecraft.evolution.proposers.vocabulary import IMPORTS, WRAPPERS, blocks, described, name_of
from cachecraft.policy.source import CONTRACT

WIDTH = 110
_SMALLEST_REPEATED = 5  # nodes of a repeated part that gets a name of its own


def write_form(form: Form) -> str:
    """The policy's text.

    Args:
        form: A policy taken apart; helpers that its score does not use are left out, building blocks that it uses are
            copied in.

    Returns:
        A program that keeps the contract's form.
    """
    scorer = form.scorer or _scorer(form)
    texts = dict(form.functions) | {"score_tokens": scorer}
    helpers = _used_helpers(form, texts.values())
    ordered = [texts[name] for name in ("protect",) if name in texts]
    ordered += [*helpers, scorer]
    ordered += [texts[name] for name in ("select_tokens_to_keep", "allocate") if name in texts]
    code = "\n\n\n".join(ordered)
    return f'"""{_summary(form)}"""\n\n{_imports(form, code)}\n\n\n{code}\n'


def _scorer(form: Form) -> str:
    body, used = _body(form)
    return "\n".join([*_signature(form, used), '    """(G, T): higher is kept longer."""', *body])


def _summary(form: Form) -> str:
    """The first line of the docstring: what the score is, without numbers, which change too often to be told."""
    text = form.title if form.scorer else described(form.score, form.names)
    text = text[:1].upper() + text[1:].rstrip(".")
    if len(text) > WIDTH:
        cut = text.rfind(",", 0, WIDTH - 12)
        text = text[: cut if cut > WIDTH // 3 else text.rfind(" ", 0, WIDTH - 12)] + " and more"
    return text.replace("\\", "").replace('"', "'") + "."


def _mentioned(texts: Iterable[str]) -> set[str]:
    return {node.id for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}


def _used_helpers(form: Form, texts: Iterable[str]) -> list[str]:
    """The definitions that these texts reach: building blocks first, in their order, then the program's own."""
    available = {name: block for name, block in blocks().items() if name not in form.helpers} | dict(form.helpers)
    found: set[str] = set()
    waiting = _mentioned(texts) & available.keys()
    while waiting:
        found |= waiting
        waiting = (_mentioned(available[name] for name in waiting) & available.keys()) - found
    return list(dict.fromkeys(text for name, text in available.items() if name in found))


def _imports(form: Form, code: str) -> str:
    used = _mentioned([code])
    known = dict(IMPORTS) | dict(form.imports)
    plain: set[str] = set()
    from_module: dict[str, set[str]] = {}
    for name in sorted(used & known.keys()):
        found = re.fullmatch(r"from (\S+) import (.+)", known[name])
        if found:
            from_module.setdefault(found[1], set()).add(found[2])
        else:
            plain.add(known[name])
    lines = [*sorted(plain)]
    lines += [
        f"from {module} import {', '.join(sorted(from_module[module], key=_import_order))}"
        for module in sorted(from_module)
    ]
    ours = [line for line in lines if line.startswith(("from cachecraft", "import cachecraft"))]
    others = [line for line in lines if line not in ours]
    return "\n\n".join("\n".join(part) for part in (others, ours) if part)


def _import_order(name: str) -> tuple[bool, str]:
    return name[:1].islower(), name


def _signature(form: Form, used: set[str]) -> list[str]:
    """The scorer's first line, with the parameters that it still uses."""
    given = []
    for name, (annotation, default) in form.parameters.items():
        if name in used:
            given.append(f"{name}: {annotation} = {default}" if annotation else f"{name}={default}")
    inside = ", ".join(["f: Features", *(["*", *given] if given else [])])
    line = f"def score_tokens({inside}) -> Tensor:"
    if len(line) <= WIDTH:
        return [line]
    return ["def score_tokens(", "    f: Features,", "    *,", *(f"    {each}," for each in given), ") -> Tensor:"]


def _body(form: Form) -> tuple[list[str], set[str]]:
    """The scorer's statements, and the names that they use."""
    wanted = _parts_to_name(form)
    reserved = {*form.helpers, *form.imports, *IMPORTS, *blocks(), *form.parameters, *CONTRACT, "f", *dir(builtins)}
    writer = _Writer(wanted, reserved)
    last: ast.expr = writer.visit(copy.deepcopy(form.score))
    lines = [line for name, value in writer.statements for line in layout(f"{name} = ", value)]
    lines += layout("return ", last)
    used = {node.id for node in ast.walk(form.score) if isinstance(node, ast.Name)}
    return textwrap.indent("\n".join(lines), "    ").splitlines(), used


def _parts_to_name(form: Form) -> dict[str, str]:
    """Parts of the score that get a local name, by `key`, each with the name it would like.

    The signals of a sum, parts that are used twice, and parts that had a name in the program they come from.
    """
    nodes = list(subexpressions(form.score))
    uses = _uses(form.score)
    summed = any(isinstance(node, ast.BinOp) for node in nodes)
    methods = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    wanted = {key(each): "scores" for each in _inside(form.score)}
    for node in nodes:
        own = key(node)
        if node is form.score or own in wanted or id(node) in methods or isinstance(node, ast.Constant | ast.Name):
            continue
        liked = name_of(node)
        repeated = uses[own] > 1 and sum(1 for _ in ast.walk(node)) >= _SMALLEST_REPEATED
        if liked and (summed or repeated):
            wanted[own] = liked
        elif own in form.names and (uses[own] > 1 or not isinstance(node, ast.Attribute)):
            wanted[own] = form.names[own]
        elif repeated:
            wanted[own] = "common"
    return wanted


def _inside(score: ast.expr) -> list[ast.expr]:
    """The sum that a score treats as a whole, if it does."""
    inner = score
    while called(inner) in WRAPPERS and isinstance(inner, ast.Call):
        inner = inner.args[0]
    summed = isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add | ast.Sub)
    return [inner] if summed and inner is not score else []


def _uses(score: ast.expr) -> Counter[str]:
    """In how many different places of a score each part is used, places inside a repeated part counted once."""
    places = {
        (key(part), key(node), field)
        for node in subexpressions(score)
        for field, value in ast.iter_fields(node)
        for part in (value if isinstance(value, list) else [value])
        if isinstance(part, ast.expr)
    }
    return Counter(part for part, _, _ in places)


class _Writer(ast.NodeTransformer):
    """Takes the wanted parts out of an expression, as assignments in the order in which they are needed."""

    def __init__(self, wanted: Mapping[str, str], reserved: set[str]) -> None:
        self._wanted, self._reserved = wanted, reserved
        self._given: dict[str, str] = {}
        self.statements: list[tuple[str, ast.expr]] = []

    def visit(self, node: ast.AST) -> Any:
        """Visit a node: its parts first, then itself."""
        own = key(node) if isinstance(node, ast.expr) else ""
        if own in self._given:
            return ast.Name(self._given[own], ast.Load())
        found = self.generic_visit(node)
        if own not in self._wanted or not isinstance(found, ast.expr):
            return found
        name = self._free(self._wanted[own])
        self._given[own] = name
        self.statements.append((name, found))
        return ast.Name(name, ast.Load())

    def _free(self, liked: str) -> str:
        taken = self._reserved | set(self._given.values())
        name, number = liked, 2
        while name in taken or keyword.iskeyword(name):
            name, number = f"{liked}_{number}", number + 1
        return name


def layout(prefix: str, value: ast.expr, indent: int = 4) -> list[str]:
    """Lines of a statement, broken where black would break them.

    Args:
        prefix: What stands before the expression.
        value: The expression.
        indent: Columns that the caller will put before every line.
    """
    line = prefix + ast.unparse(value)
    if len(line) + indent <= WIDTH:
        return [line]
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub):
        return [f"{prefix}(", *(f"    {term}" for term in _terms(value)), ")"]
    if isinstance(value, ast.Call) and value.args:
        given = [layout("", each, indent + 4) for each in value.args]
        given += [layout(f"{each.arg}=", each.value, indent + 4) for each in value.keywords]
        inside = [f"    {line}" for part in given for line in [*part[:-1], part[-1] + ","]]
        return [f"{prefix}{ast.unparse(value.func)}(", *inside, ")"]
    return [f"{prefix}(", f"    {ast.unparse(value)}", ")"] if isinstance(value, ast.BinOp) else [line]


def _terms(value: ast.expr) -> list[str]:
    """The terms of a sum, each with its sign; what unparse puts around the right side of a sum stays there."""
    if not (isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add | ast.Sub)):
        return [ast.unparse(value)]
    right = ast.unparse(ast.BinOp(ast.Name("x", ast.Load()), value.op, value.right)).removeprefix("x ")
    return [*_terms(value.left), right]
