"""A policy taken apart so that it can be bred: its score as one expression, and everything else as text.

A scorer of plain assignments becomes one expression with the names of its intermediate values remembered; any other
scorer is kept whole as a function of its own, which the expression calls. Reading only; writing is in writing.py.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from cachecraft.evolution.program import lines_of
from cachecraft.policy.source import CONTRACT

LARGEST = 400  # nodes of an expression; a scorer that would be larger is kept whole


@dataclass(frozen=True, eq=False)
class Form:
    """A policy taken apart.

    Attributes:
        name: A short name for it, from its docstring.
        title: First line of its docstring, without its paper: what is written stands on its own.
        scorer: Source of `score_tokens` as it was; "" once the score is another.
        score: What `score_tokens` returns, over ``f``, its parameters, helpers and imported names. Never changed in
            place.
        parameters: Annotation and default of each parameter of `score_tokens`, as texts.
        names: Names that the program gave to parts of the score, by what `key` says of the part.
        functions: Source of the other functions of the contract.
        helpers: Source of the module's other definitions.
        imports: Imported names, each with the statement that imports it alone.
    """

    name: str
    title: str
    scorer: str
    score: ast.expr
    parameters: Mapping[str, tuple[str, str]]
    names: Mapping[str, str]
    functions: Mapping[str, str]
    helpers: Mapping[str, str]
    imports: Mapping[str, str]

    def with_score(self, score: ast.expr) -> Form:
        """The same policy with another score."""
        return replace(self, score=score, scorer="")


def key(node: ast.expr) -> str:
    """What an expression is, whatever its place: equal for equal expressions."""
    return ast.dump(node)


def parse(text: str) -> ast.expr:
    """An expression from its text."""
    return ast.parse(text, mode="eval").body


def called(node: ast.AST) -> str:
    """Name of the plain function that an expression calls, or ""."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def put(tree: ast.expr, target: ast.expr, new: ast.expr) -> ast.expr:
    """A copy of a tree in which one of its nodes (this very object) is another one."""
    return _Put(target, new).copied(tree)


class _Put:
    def __init__(self, target: ast.expr, new: ast.expr) -> None:
        self._target, self._new = target, new

    def copied(self, node: ast.expr) -> ast.expr:
        found = copy.copy(node) if node is not self._target else copy.deepcopy(self._new)
        if node is not self._target:
            for field, value in ast.iter_fields(node):
                if isinstance(value, ast.AST):
                    setattr(found, field, self.copied(value))  # type: ignore[arg-type]
                elif isinstance(value, list):
                    setattr(found, field, [self.copied(each) if isinstance(each, ast.AST) else each for each in value])  # type: ignore[arg-type]
        return found


def read_form(source: str) -> Form:
    """Take a policy apart.

    Args:
        source: A policy that keeps the contract's form.

    Raises:
        SyntaxError: It does not parse.
        ValueError: It wraps another policy, which cannot be bred.
    """
    tree, lines = ast.parse(source), lines_of(source)
    functions: dict[str, str] = {}
    helpers: dict[str, str] = {}
    imports: dict[str, str] = {}
    scorer: ast.FunctionDef | None = None
    for node in tree.body:
        text = _text(lines, node)
        if isinstance(node, ast.FunctionDef):
            if node.name == "score_tokens":
                scorer = node
            elif node.name in CONTRACT:
                functions[node.name] = text
            else:
                helpers[node.name] = text
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports |= _statements(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            helpers |= {each.id: text for each in targets if isinstance(each, ast.Name)}
    if scorer is None or any(each.arg == "base" for each in ast.walk(scorer) if isinstance(each, ast.arg)):
        raise ValueError("The program has no score_tokens of its own to breed from.")
    document = ast.get_docstring(tree) or ""
    name = _short_name(document, {*helpers, *imports, *CONTRACT})
    text = _text(lines, scorer)
    parameters = _parameters(scorer)
    found = _inlined(scorer)
    if found is None:
        helpers[name] = _kept_whole(lines, scorer, name)
        given = "".join(f", {each}={each}" for each in parameters)
        found = parse(f"{name}(f{given})"), {}
    score, names = found
    if name.strip("_") != "parent" and not isinstance(score, ast.BinOp | ast.UnaryOp) and not called(score):
        names = names | {key(score): name.strip("_")}
    title = re.sub(r"\s*\([^()]*arXiv[^()]*\)", "", document.partition("\n")[0]) or "An eviction policy"
    return Form(name, title, text, score, parameters, names, functions, helpers, imports)


def _text(lines: list[str], node: ast.stmt) -> str:
    """The lines of a statement of the module."""
    return "".join(lines[node.lineno - 1 : node.end_lineno]).rstrip()


def _statements(node: ast.Import | ast.ImportFrom) -> dict[str, str]:
    found = {}
    for alias in node.names:
        bound = alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else alias.name.partition(".")[0])
        renamed = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
        found[bound] = (
            f"from {node.module} import {renamed}" if isinstance(node, ast.ImportFrom) else f"import {renamed}"
        )
    return found


def _short_name(document: str, taken: set[str]) -> str:
    """A private name such as ``_keydiff`` from "KeyDiff: keys that ...", free of what the module defines."""
    title = document.partition("\n")[0].partition(":")
    words = re.findall(r"[a-z0-9]+", title[0].lower()) if title[1] else []
    name = "_" + "_".join(words[:3]) if words and len(words) <= 3 else "_parent"
    while name in taken:
        name += "_score"
    return name


def _parameters(scorer: ast.FunctionDef) -> dict[str, tuple[str, str]]:
    arguments = scorer.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs = list(zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True))
    pairs += [
        (each, default) for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default
    ]
    return {
        each.arg: (ast.unparse(each.annotation) if each.annotation else "", ast.unparse(default))
        for each, default in pairs
    }


def _inlined(scorer: ast.FunctionDef) -> tuple[ast.expr, dict[str, str]] | None:
    """The returned expression with every local value put in its place, and the names that the values had.

    None where that would not mean the same.
    """
    known: dict[str, ast.expr] = {scorer.args.args[0].arg: ast.Name("f", ast.Load())}
    names: dict[str, str] = {}
    body = scorer.body[1:] if ast.get_docstring(scorer) is not None else scorer.body
    for statement in body:
        if any(isinstance(node, _SCOPED) or _changes(node) for node in ast.walk(statement)):
            return None
        if isinstance(statement, ast.Return) and statement.value is not None:
            score = _Inline(known).visit(copy.deepcopy(statement.value))
            small = isinstance(score, ast.expr) and sum(1 for _ in ast.walk(score)) <= LARGEST
            return (score, names) if small else None
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            target, value = statement.targets[0], statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            target, value = statement.target, statement.value
        else:
            return None
        if not isinstance(target, ast.Name):
            return None
        known[target.id] = _Inline(known).visit(copy.deepcopy(value))
        if sum(1 for _ in ast.walk(known[target.id])) > LARGEST:
            return None
        names = {part: name for part, name in names.items() if name != target.id}  # the last one keeps its name
        names[key(known[target.id])] = target.id
    return None


_SCOPED = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.NamedExpr, ast.Await, ast.Yield)


def _changes(node: ast.AST) -> bool:
    """Whether a call may change something or give something else the next time, so that its place matters."""
    return isinstance(node, ast.Attribute) and (
        node.attr == "generator" or (node.attr.endswith("_") and not node.attr.endswith("__"))
    )


class _Inline(ast.NodeTransformer):
    def __init__(self, known: Mapping[str, ast.expr]) -> None:
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self._known[node.id]) if node.id in self._known else node


def _kept_whole(lines: list[str], scorer: ast.FunctionDef, name: str) -> str:
    """The scorer's source as a function of another name whose parameters have no defaults."""
    bare = copy.deepcopy(scorer)
    bare.name = name
    first = len(bare.args.args) - len(bare.args.defaults)
    bare.args.kwonlyargs = [*bare.args.args[first:], *bare.args.kwonlyargs]
    bare.args.args, bare.args.defaults = bare.args.args[:first], []
    bare.args.kw_defaults = [None] * len(bare.args.kwonlyargs)
    bare.body = [ast.Pass()]
    signature = ast.unparse(bare).removesuffix("    pass").rstrip()
    return "".join([signature, "\n", *lines[scorer.body[0].lineno - 1 : scorer.end_lineno]]).rstrip()


def subexpressions(tree: ast.expr) -> Iterator[ast.expr]:
    """Every expression of a tree, itself included, outermost first."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.expr))
