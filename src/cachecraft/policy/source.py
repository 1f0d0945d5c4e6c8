"""A policy's program text, read without running it: functions, parameters, docstring and needed features."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from cachecraft.errors import PolicyLoadError
from cachecraft.policy.features import Features

ParameterValue = bool | int | float | str

# The functions of the contract and the arguments that the harness passes by position.
CONTRACT = {
    "protect": ("f",),
    "score_tokens": ("f",),
    "select_tokens_to_keep": ("scores", "keep", "f"),
    "allocate": ("scores", "total", "floor"),
}
_PAPER = re.compile(r"arXiv[:\s]*(\d{4}\.\d{4,5})", re.IGNORECASE)
FEATURES = frozenset(name for name in vars(Features) if not name.startswith("_")) - {"read_keep"}
METHODS = frozenset(name for name in FEATURES if not isinstance(getattr(Features, name), property))
_WINDOWED = frozenset({"window_attention", "local_attention_received", "attention_rows", "chunk_attention"})


@dataclass(frozen=True)
class PolicySource:
    """What a policy's text says about it.

    Attributes:
        parameters: Name and default of every parameter, in the order of the file.
        declared: For each function of the contract that the file has, the parameters it takes.
        wraps: ``score_tokens`` takes a ``base``.
        needs: Names of the features that the text mentions.
        paper: arXiv id in the docstring, or "".
        summary: First line of the docstring.
    """

    parameters: Mapping[str, ParameterValue]
    declared: Mapping[str, tuple[str, ...]]
    wraps: bool
    needs: tuple[str, ...]
    paper: str
    summary: str


def read_source(source: str, origin: str) -> PolicySource:
    """Read a policy's text.

    Args:
        source: The program text.
        origin: Its file, for messages.

    Raises:
        PolicyLoadError: A syntax error, no ``score_tokens``, or a function that cannot be called as the
            contract says.
    """
    try:
        tree = ast.parse(source, origin)
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise PolicyLoadError(f"Policy file {origin}{line} is not valid Python: {reason}; mend it.") from error
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if "score_tokens" not in functions:
        raise PolicyLoadError(
            f"Policy file {origin} has no function score_tokens; define score_tokens(f) that returns a (G, T) tensor."
        )
    parameters: dict[str, ParameterValue] = {}
    declared: dict[str, tuple[str, ...]] = {}
    for name in CONTRACT:
        if name not in functions:
            continue
        own = _parameters(functions[name], origin)
        declared[name] = tuple(own)
        for key, default in own.items():
            if default is None:
                continue
            earlier = parameters.setdefault(key, default)
            if earlier != default or type(earlier) is not type(default):
                raise PolicyLoadError(
                    f"Policy file {origin}, line {functions[name].lineno}: parameter {key} has the default "
                    f"{default!r} in {name} and {earlier!r} elsewhere; give it one default."
                )
    document = ast.get_docstring(tree) or ""
    paper = _PAPER.search(document)
    return PolicySource(
        parameters=parameters,
        declared=declared,
        wraps="base" in declared["score_tokens"],
        needs=_needs(tree),
        paper=paper[1] if paper else "",
        summary=document.partition("\n")[0].strip(),
    )


def _parameters(function: ast.FunctionDef, origin: str) -> dict[str, ParameterValue | None]:
    """Parameters after the contract's own arguments, with their defaults; None for ``base``."""
    expected = CONTRACT[function.name]
    where = f"Policy file {origin}, line {function.lineno}: {function.name}"
    positional = [*function.args.posonlyargs, *function.args.args]
    if len(positional) < len(expected) or function.args.vararg or function.args.kwarg:
        raise PolicyLoadError(
            f"{where} must take ({', '.join(expected)}) and then keyword parameters with defaults; mend its arguments."
        )
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(function.args.defaults))
    pairs = [*zip(positional, [*defaults, *function.args.defaults], strict=True)][len(expected) :]
    pairs += zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    found: dict[str, ParameterValue | None] = {}
    for argument, default in pairs:
        if argument.arg == "base":
            found["base"] = None
            continue
        try:
            value = ast.literal_eval(default) if default is not None else None
        except ValueError:
            value = None
        if not isinstance(value, bool | int | float | str):
            raise PolicyLoadError(
                f"{where} has a parameter {argument.arg} without a plain default; give it a number, true or "
                "false, or a text."
            )
        found[argument.arg] = value
    return found


def _needs(tree: ast.Module) -> tuple[str, ...]:
    """Features that the text reads: ``name.member``, where the name is no imported module."""
    modules = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and node.attr in FEATURES
        and isinstance(node.value, ast.Name)
        and node.value.id not in modules
        and (id(node) in called) == (node.attr in METHODS)
    }
    return tuple(sorted(found))


def cost_class(needs: Iterable[str]) -> str:
    """How a policy's time grows with the context: ``"O(T)"``, ``"O(wT)"`` or ``"O(T^2)"``."""
    names = set(needs)
    if "attention_received" in names:
        return "O(T^2)"
    return "O(wT)" if names & _WINDOWED else "O(T)"
