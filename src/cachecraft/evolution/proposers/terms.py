"""The score as a weighted sum: taking it into terms and putting it together again, and finding the parts of a term.

Every score is such a sum, if only of one term. Nothing here draws at random.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cachecraft.evolution.proposers.form import called
from cachecraft.evolution.proposers.vocabulary import DEPTHS, NORMS, POOLS, SHARED, WRAPPERS


@dataclass(frozen=True, eq=False)
class Term:
    """One term of a sum: a weight, positive or negative, and what it weighs."""

    weight: float
    body: ast.expr


@dataclass(frozen=True, eq=False)
class Sum:
    """A score.

    Attributes:
        around: What is done to the sum as a whole, outermost first: calls of pools or of sharing over heads, whose
            first argument is left open.
        terms: At least one.
    """

    around: tuple[ast.Call, ...]
    terms: tuple[Term, ...]


def wrap(name: str, inner: ast.expr, *numbers: float) -> ast.Call:
    """A call of a building block on a signal."""
    return ast.Call(ast.Name(name, ast.Load()), [inner, *(ast.Constant(number) for number in numbers)], [])


def rewrap(call: ast.Call, inner: ast.expr) -> ast.Call:
    """The same call with another first argument."""
    return ast.Call(call.func, [inner, *call.args[1:]], call.keywords)


def split(score: ast.expr, defaults: Mapping[str, float]) -> Sum:
    """Take a score apart.

    Args:
        score: The expression.
        defaults: Parameters that are floating-point numbers, with their defaults; as factors they become weights.
    """
    around: list[ast.Call] = []
    while isinstance(score, ast.Call) and called(score) in (*POOLS, SHARED) and _is_sum(score.args[0]):
        around.append(score)
        score = score.args[0]
    return Sum(tuple(around), tuple(_terms(score, 1.0, defaults)))


def _is_sum(node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and called(node) in (*POOLS, SHARED):
        return _is_sum(node.args[0])
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub)


def _terms(node: ast.expr, weight: float, defaults: Mapping[str, float]) -> Iterator[Term]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield from _terms(node.left, weight, defaults)
        yield from _terms(node.right, weight if isinstance(node.op, ast.Add) else -weight, defaults)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield from _terms(node.operand, -weight, defaults)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        numbers = [_number(factor, defaults) for factor in factors(node)]
        left = [factor for factor, number in zip(factors(node), numbers, strict=True) if number is None]
        weight *= math.prod(number for number in numbers if number is not None)
        if len(left) == 1 and None in numbers and len(numbers) > 1:
            yield from _terms(left[0], weight, defaults)
        else:
            yield Term(weight, product(left or [ast.Constant(1.0)]))
    else:
        yield Term(weight, node)


def factors(node: ast.expr) -> list[ast.expr]:
    """The factors of a product, from left to right; an expression that is none is its own only factor."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return [*factors(node.left), *factors(node.right)]
    return [node]


def product(found: Sequence[ast.expr]) -> ast.expr:
    """A product of at least one factor."""
    whole = found[0]
    for factor in found[1:]:
        whole = ast.BinOp(whole, ast.Mult(), factor)
    return whole


def _number(node: ast.expr, defaults: Mapping[str, float]) -> float | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inside = _number(node.operand, defaults)
        return None if inside is None else -inside
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    return defaults.get(node.id) if isinstance(node, ast.Name) else None


def join(found: Sum) -> ast.expr:
    """Put a score together: the terms that are added first, in their order, weights rounded as a person would."""
    terms = sorted(found.terms, key=lambda term: term.weight < 0)
    if len(terms) == 1:  # the size of its weight means nothing
        score = terms[0].body if terms[0].weight > 0 else ast.UnaryOp(ast.USub(), terms[0].body)
    else:
        score = _weighed(terms[0].weight, terms[0].body)
        for term in terms[1:]:
            sign = ast.Add() if term.weight > 0 else ast.Sub()
            score = ast.BinOp(score, sign, _weighed(abs(term.weight), term.body))
    for call in reversed(found.around):
        score = rewrap(call, score)
    return score


def _weighed(weight: float, body: ast.expr) -> ast.expr:
    rounded = rounded_weight(weight)
    if rounded == 1:
        return body
    number: ast.expr = ast.Constant(abs(rounded))
    return product([number if rounded > 0 else ast.UnaryOp(ast.USub(), number), *factors(body)])


def rounded_weight(weight: float) -> float:
    """Two digits that count: 0.37, 1.4, 12.0."""
    return float(f"{weight:.2g}")


def normalised(term: Term) -> Term:
    """The same term on a scale that others can be added to: as ranks, unless something else has seen to that."""
    if any(called(node) in NORMS for node in ast.walk(term.body)):
        return term
    return Term(term.weight, wrap("_ranked", term.body))


def signals(node: ast.expr) -> list[ast.expr]:
    """The innermost signals of a term: what is left when norms, pools, sharing, products and extremes are taken off."""
    return list(_signals(node))


def _signals(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.Call) and called(node) in WRAPPERS and node.args:
        yield from _signals(node.args[0])
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        for side in factors(node):
            if not isinstance(side, ast.Constant | ast.Name) and ast.unparse(side) not in DEPTHS:
                yield from _signals(side)
    elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.maximum", "torch.minimum"):
        for side in node.args:
            yield from _signals(side)
    else:
        yield node


def calls_of(node: ast.expr, names: Sequence[str]) -> list[ast.Call]:
    """Every call of one of these building blocks in a term."""
    return [each for each in ast.walk(node) if isinstance(each, ast.Call) and called(each) in names and each.args]
