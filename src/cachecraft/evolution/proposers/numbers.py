"""Changes numbers in a program's text and nothing else: on a logarithmic scale, within the limits of their kind.

Works on any policy, whoever wrote it, because it edits the text in place: layout and comments stay.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cachecraft.evolution.interface import Interface, protected_definitions
from cachecraft.evolution.program import lines_of
from cachecraft.evolution.proposers.grammar import changed_whole
from cachecraft.evolution.proposers.terms import rounded_weight
from cachecraft.evolution.proposers.vocabulary import SLOTS, Range
from cachecraft.policy.source import CONTRACT

# Whole numbers by the name of their parameter; others are left between a quarter and four times what they are.
_BY_NAME: Mapping[str, Range] = MappingProxyType(
    {
        **SLOTS,
        "kernel": SLOTS["width"],
        "sinks": Range(0, 32),
        "first": Range(0, 32),
        "recent": Range(0, 128),
        "last": Range(0, 128),
        "chunk": Range(2, 64),
        "size": Range(2, 64),
        "chunk_size": Range(2, 64),
    }
)
# Whole numbers that are arguments of these calls, by function or method and place.
_BY_CALL: Mapping[tuple[str, int], Range] = MappingProxyType(
    {
        ("_unusual", 1): SLOTS["power"],
        ("_novelty", 1): SLOTS["before"],
        ("_local_distance", 1): SLOTS["around"],
        ("_smoothed", 1): SLOTS["width"],
        ("_peaked", 1): SLOTS["width"],
        ("_expected", 1): SLOTS["ahead"],
        ("local_attention_received", 0): SLOTS["span"],
        ("window_attention", 0): SLOTS["window"],
    }
)
_SHARES = frozenset({"share", "_shared"})
TRIES = 10  # a small step may round to where it came from
_SMALLEST = 1e-4  # smaller floats guard divisions


@dataclass(frozen=True)
class Number:
    """A number that may be changed.

    Attributes:
        node: Its place.
        value: What it is.
        within: Limits of a whole number; None for a float.
        share: A float that must stay inside (0, 1).
        label: What it is a number of.
    """

    node: ast.Constant
    value: float
    within: Range | None
    share: bool
    label: str


def numbers(source: str, interface: Interface) -> list[Number]:
    """The numbers of a program that may be changed under an interface, in the order of the text."""
    frozen = protected_definitions(source, interface) if interface.level != "constants" else frozenset()
    found = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name not in frozen:
            found += list(_numbers(node))
    found.sort(key=lambda each: (each.node.lineno, each.node.col_offset))
    return found


def _numbers(function: ast.FunctionDef) -> Iterator[Number]:
    seen: set[int] = set()

    def one(node: ast.expr, name: str, within: Range | None) -> Iterator[Number]:
        if not isinstance(node, ast.Constant) or id(node) in seen:
            return
        if type(node.value) is int and within is not None:
            seen.add(id(node))
            yield Number(node, node.value, within, False, name)
        elif type(node.value) is float and abs(node.value) >= _SMALLEST and not node.value.is_integer():
            seen.add(id(node))
            yield Number(node, node.value, None, name in _SHARES and 0 < node.value < 1, name)

    if function.name in CONTRACT:
        for argument, default in _defaults(function):
            yield from one(default, argument, _limits(argument, default))
    if function.name == "protect":
        for each in ast.walk(function):
            if isinstance(each, ast.Return) and isinstance(each.value, ast.Tuple):
                for value, name in zip(each.value.elts, ("first", "last"), strict=False):
                    yield from one(value, name, _BY_NAME[name])
    for each in ast.walk(function):
        if isinstance(each, ast.Call):
            name = each.func.id if isinstance(each.func, ast.Name) else getattr(each.func, "attr", "")
            for place, value in enumerate(each.args):
                yield from one(value, name, _BY_CALL.get((name, place)))
            for word in each.keywords:
                yield from one(word.value, word.arg or "", _BY_NAME.get(word.arg or ""))
    for each in ast.walk(function):
        if isinstance(each, ast.Constant) and type(each.value) is float:
            yield from one(each, "a weight", None)


def _defaults(function: ast.FunctionDef) -> Iterator[tuple[str, ast.expr]]:
    arguments = function.args
    yield from zip(
        [each.arg for each in arguments.args[len(arguments.args) - len(arguments.defaults) :]],
        arguments.defaults,
        strict=True,
    )
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if default is not None:
            yield argument.arg, default


def _limits(name: str, default: ast.expr) -> Range | None:
    if name in _BY_NAME or not isinstance(default, ast.Constant) or type(default.value) is not int:
        return _BY_NAME.get(name)
    return Range(math.ceil(default.value / 4), default.value * 4) if default.value > 0 else None


def changed(draw: random.Random, source: str, interface: Interface) -> tuple[str, str] | None:
    """Change one number, or two; None where there is none to change.

    A parameter that several functions share keeps one default.

    Returns:
        The new source and what was changed.
    """
    notes, before = [], source
    for _ in range(draw.choice((1, 1, 2))):
        known = numbers(source, interface)
        if not known:
            break
        chosen = draw.choice(known)
        moves = (_moved(draw, chosen) for _ in range(TRIES))
        new = next((move for move in moves if move != chosen.value), chosen.value)
        if new == chosen.value:
            continue
        shared = [each for each in known if each.label == chosen.label and each.value == chosen.value]
        together = shared if _is_default(source, chosen) else [chosen]
        made = source
        for each in sorted(together, key=lambda it: (it.node.lineno, it.node.col_offset), reverse=True):
            made = _replaced(made, each.node, repr(new))
        if made != before:  # a second change must not undo the first
            source = made
            notes.append(f"{chosen.label} {new:g} instead of {chosen.value:g}")
    return (source, f"Set {' and '.join(notes)}") if notes else None


def _is_default(source: str, number: Number) -> bool:
    """Whether a number is the default of a parameter."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef):
            for _, default in _defaults(node):
                if (default.lineno, default.col_offset) == (number.node.lineno, number.node.col_offset):
                    return True
    return False


def _moved(draw: random.Random, number: Number) -> float | int:
    if number.within is not None:
        return _whole(draw, int(number.value), number.within)
    if number.share:
        odds = math.log(number.value / (1 - number.value)) + draw.gauss(0, 0.7)
        return min(0.99, max(0.01, rounded_weight(1 / (1 + math.exp(-odds)))))
    return rounded_weight(number.value * math.exp(draw.gauss(0, 0.7)))


def _whole(draw: random.Random, value: int, within: Range) -> int:
    if within.low > 0:
        return changed_whole(draw, value, within)
    if value and draw.random() < 0.1:
        return 0
    return changed_whole(draw, value, Range(1, within.high)) if value else draw.choice((1, 2, 4, 8))


def _replaced(source: str, node: ast.Constant, text: str) -> str:
    lines = lines_of(source)
    line = lines[node.lineno - 1].encode()
    end = node.end_col_offset
    assert end is not None
    lines[node.lineno - 1] = (line[: node.col_offset] + text.encode() + line[end:]).decode()
    return "".join(lines)
