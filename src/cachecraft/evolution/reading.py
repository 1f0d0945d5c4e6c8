"""A program's syntax tree against what a policy may contain, one sentence for each thing that it may not.

What is allowed is listed and the rest is refused; no node is run. The names are in vocabulary.py, the size of a program
and its parsing in gate.py.
"""

from __future__ import annotations

import ast
import builtins
import difflib
import importlib
import importlib.util
from collections.abc import Iterator

from cachecraft.evolution.vocabulary import ATTRIBUTES, BUILTINS, FEATURES, IN_PLACE, MODULES, PURE_MODULES, RANDOM

CONTRACT = ("protect", "score_tokens", "select_tokens_to_keep", "allocate")

_ALLOWED = (
    *(ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Assign, ast.AugAssign, ast.AnnAssign),
    *(ast.For, ast.If, ast.Expr, ast.Pass, ast.Break, ast.Continue, ast.Import, ast.ImportFrom, ast.alias),
    *(ast.BoolOp, ast.BinOp, ast.UnaryOp, ast.Lambda, ast.IfExp, ast.Dict, ast.List, ast.Tuple, ast.Starred),
    *(ast.ListComp, ast.DictComp, ast.GeneratorExp, ast.comprehension, ast.Compare, ast.Call, ast.keyword),
    *(ast.Constant, ast.Attribute, ast.Subscript, ast.Slice, ast.Name, ast.NamedExpr),
    *(ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop),
)
_ADVICE: dict[type[ast.AST], str] = {
    ast.While: "a while loop; write for … in range(…), so that it ends",
    ast.Try: "try; give a result for every context instead of catching errors",
    ast.Raise: "raise; give a result for every context",
    ast.Assert: "assert; give a result for every context",
    ast.ClassDef: "a class; a policy is functions",
    ast.Global: "global; keep nothing between calls",
    ast.Nonlocal: "nonlocal; keep nothing between calls",
    ast.With: "with; there is nothing to open",
    ast.Delete: "del; let names go out of scope",
    ast.AsyncFunctionDef: "async; compute directly",
    ast.Await: "await; compute directly",
    ast.Yield: "yield; return the whole result",
    ast.YieldFrom: "yield from; return the whole result",
    ast.JoinedStr: "a formatted text; a policy computes with numbers",
    ast.Set: "a set, whose order is not defined; use a list or a tuple",
    ast.SetComp: "a set, whose order is not defined; use a list or a tuple",
}


def _is_constant(node: ast.expr | None) -> bool:
    """A literal that nobody can change: a number, a text, None, or a tuple or an arithmetic of such."""
    match node:
        case None | ast.Constant():
            return True
        case ast.UnaryOp(operand=operand):
            return _is_constant(operand)
        case ast.BinOp(left=left, right=right):
            return _is_constant(left) and _is_constant(right)
        case ast.Tuple(elts=elements):
            return all(_is_constant(each) for each in elements)
        case _:
            return False


class Reading:
    """One pass over a program: where its names come from, then each node against what is allowed."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._imported: dict[str, str] = {}  # local name -> full dotted name
        self._bound: set[str] = set()
        self._views: set[str] = {"f"}  # names of the features' view
        self._handled: set[int] = set()  # nodes that the node above them has judged
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=names):
                    for alias in names:
                        self._imported[alias.asname or alias.name.partition(".")[0]] = (
                            alias.name if alias.asname else alias.name.partition(".")[0]
                        )
                case ast.ImportFrom(module=module, names=names):
                    self._imported |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in names}
                case ast.arg(arg=name, annotation=ast.Name(id="Features")):
                    self._bound.add(name)
                    self._views.add(name)
                case ast.FunctionDef(name=name) | ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                    self._bound.add(name)

    def sentences(self) -> Iterator[tuple[int, str]]:
        """Line and sentence of everything that is not allowed."""
        for line, what in [*self._top_level(), *self._nodes()]:
            yield line, f"Line {line} {what}."

    def _top_level(self) -> Iterator[tuple[int, str]]:
        functions: set[str] = set()
        for index, node in enumerate(self._tree.body):
            match node:
                case ast.Import() | ast.ImportFrom():
                    pass
                case ast.Expr(value=ast.Constant(value=str())) if index == 0:
                    pass
                case ast.FunctionDef(name=name):
                    if name in functions:
                        yield node.lineno, f"defines {name} again; keep one of them"
                    elif name not in CONTRACT and (near := difflib.get_close_matches(name, CONTRACT, cutoff=0.8)):
                        yield node.lineno, f"defines {name}, which nobody would call; did you mean {near[0]}?"
                    functions.add(name)
                case ast.Assign(value=value) | ast.AnnAssign(value=value) if _is_constant(value):
                    pass
                case ast.Assign() | ast.AnnAssign():
                    yield (
                        node.lineno,
                        "makes something at the top level that could change; only numbers, texts and tuples of them "
                        "may stand there, so that nothing is kept between calls",
                    )
                case _:
                    yield node.lineno, "runs at the top level; only imports, constants and functions may stand there"

    def _nodes(self) -> Iterator[tuple[int, str]]:
        line = 1
        waiting: list[tuple[ast.AST, int]] = [(self._tree, 1)]
        while waiting:
            node, line = waiting.pop()
            line = getattr(node, "lineno", line)
            if isinstance(node, _ALLOWED):
                yield from ((line, what) for what in self._judge(node))
            else:
                yield line, f"uses {_ADVICE.get(type(node), f'{type(node).__name__}, which a policy does not need')}"
                continue
            waiting += [(child, line) for child in ast.iter_child_nodes(node)]

    def _judge(self, node: ast.AST) -> Iterator[str]:
        match node:
            case ast.Import() | ast.ImportFrom():
                yield from self._judge_import(node)
            case ast.FunctionDef() | ast.Lambda():
                yield from self._judge_function(node)
            case ast.Call():
                yield from self._judge_call(node)
            case ast.Attribute():
                yield from self._judge_attribute(node)
            case ast.Name(id=name):
                yield from self._judge_name(node, name)
            case ast.arg(arg=name):
                yield from self._judge_binding(name)
            case ast.Constant(value=value) if isinstance(value, bytes | complex):
                yield f"writes {value!r:.40}; a policy needs numbers and texts only"
            case ast.Subscript(ctx=ast.Store(), value=written):
                yield from self._judge_write(written)

    def _judge_import(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if node not in self._tree.body:
            yield "imports inside a function; import at the top"
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name not in MODULES or alias.name.startswith(("cachecraft", "_")):
                    yield f"imports {alias.name}; {_MAY_IMPORT}"
            return
        module = node.module or ""
        allowed = MODULES.get(module, frozenset()) | _own_functions(module)
        parents = (known.rpartition(".") for known in MODULES if known.startswith("torch."))
        allowed |= {name for parent, _, name in parents if parent == module}
        if node.level or not allowed:
            yield f"imports from {'.' * node.level}{module}; {_MAY_IMPORT}"
            return
        for alias in node.names:
            if alias.name not in allowed:
                yield f"imports {alias.name} from {module}, which a policy may not use"

    def _judge_function(self, node: ast.FunctionDef | ast.Lambda) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef):
            yield from self._judge_binding(node.name)
            if node.decorator_list:
                yield f"decorates {node.name}; write plain functions"
            if node.name in CONTRACT and node not in self._tree.body:
                yield f"defines {node.name} inside a function; define it at the top level"
        if not all(_is_constant(default) for default in [*node.args.defaults, *node.args.kw_defaults]):
            yield "has a default that could change; give a number, a text, None or a tuple of them"

    def _judge_call(self, node: ast.Call) -> Iterator[str]:
        name = self._dotted(node.func)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if None in keywords:
            yield "passes **, which hides what is passed; name the arguments"
        if "out" in keywords:
            yield "passes out=, which writes into an array; use the result instead"
        if name in RANDOM:
            self._handled.add(id(node.func))
            if isinstance(keywords.get("generator", ast.Constant(None)), ast.Constant):
                yield f"draws with {name} from the global random state; pass generator=f.generator()"
        if isinstance(node.func, ast.Attribute) and node.func.attr in IN_PLACE:
            yield from self._judge_write(node.func.value)

    def _judge_write(self, written: ast.expr) -> Iterator[str]:
        """Writing straight into a feature; through another name it is found when it happens."""
        if isinstance(written, ast.Call):
            written = written.func
        match written:
            case ast.Attribute(attr=name, value=ast.Name(id=view)) if view in self._views and name in FEATURES:
                yield f"writes into {name}, which is read-only; work on a copy made with .clone()"

    def _judge_attribute(self, node: ast.Attribute) -> Iterator[str]:
        if id(node) in self._handled:
            self._handled.add(id(node.value))
            return
        if isinstance(node.ctx, ast.Store):
            yield f"sets the attribute {node.attr}; keep your own values in local variables"
            return
        dotted = self._dotted(node)
        if dotted is None:
            if node.attr not in ATTRIBUTES and node.attr not in IN_PLACE:
                yield f"reads the attribute {node.attr}, which a policy may not use"
            return
        if refused := _refused(dotted):
            yield refused
        inner: ast.expr = node.value
        while isinstance(inner, ast.Attribute | ast.Name):
            self._handled.add(id(inner))
            inner = inner.value if isinstance(inner, ast.Attribute) else ast.Constant(0)

    def _judge_name(self, node: ast.Name, name: str) -> Iterator[str]:
        if isinstance(node.ctx, ast.Store):
            yield from self._judge_binding(name)
        elif id(node) in self._handled:
            return
        elif name in self._imported:
            if refused := _refused(self._imported[name]):
                yield refused
        elif name not in self._bound and name not in BUILTINS:
            yield f"uses the name {name}, which is not defined here and not allowed"

    def _judge_binding(self, name: str) -> Iterator[str]:
        if name.startswith("__"):
            yield f"names something {name}; names with two underscores are Python's own"
        elif not name.isascii():
            yield f"names something {name!r}; use ASCII letters"
        elif name in self._imported or (hasattr(builtins, name) and name not in BUILTINS):
            yield f"gives {name} another meaning; choose another name"

    def _dotted(self, node: ast.expr) -> str | None:
        """Full name of an expression that begins with something imported; None for all else."""
        match node:
            case ast.Name(id=name):
                return self._imported.get(name)
            case ast.Attribute(value=value, attr=attribute):
                before = self._dotted(value)
                return None if before is None else f"{before}.{attribute}"
        return None


def _refused(dotted: str) -> str:
    """Why the full name of something imported may not be read, or ""."""
    if dotted in RANDOM:
        return f"passes {dotted} around; call it with generator=f.generator()"
    if any(f"{known}.".startswith(f"{dotted}.") for known in MODULES):
        return f"uses the module {dotted} as a value; call what it holds"
    module = max((known for known in {*MODULES, *PURE_MODULES} if dotted.startswith(f"{known}.")), key=len, default="")
    name, *members = dotted[len(module) + 1 :].split(".") if module else ("",)
    if name not in MODULES.get(module, frozenset()) | _own_functions(module):
        return f"reads {dotted}, which a policy may not use" if module else ""
    return next((f"reads {dotted}, which a policy may not use" for each in members if each not in ATTRIBUTES), "")


def _own_functions(module: str) -> frozenset[str]:
    """Public functions that one of the modules of pure functions defines."""
    if module not in PURE_MODULES or importlib.util.find_spec(module) is None:
        return frozenset()
    return frozenset(
        name
        for name, value in vars(importlib.import_module(module)).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module
    )


_MAY_IMPORT = "a policy may import torch, torch.nn.functional, math, typing and what cachecraft.policy offers"
