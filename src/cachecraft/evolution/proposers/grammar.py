"""Draws signals, terms and whole programs from the grammar: rank-weighted sums of signals are its natural ground.

Everything by chance comes from the generator that is handed in, and only features that the interface offers are used.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Sequence
from dataclasses import replace

from cachecraft.evolution.interface import Interface
from cachecraft.evolution.proposers.form import Form, parse
from cachecraft.evolution.proposers.terms import Sum, Term, join, rounded_weight, wrap
from cachecraft.evolution.proposers.vocabulary import (
    DEPTHS,
    POOLS,
    SHARED,
    SIGNALS,
    SLOTS,
    Range,
    Signal,
    described,
)

LARGEST_SUM = 6  # terms of a program; more do not read like a person's
_NORM_WEIGHTS = {"_ranked": 10, "_standardised": 1, "_scaled": 1, "_softened": 0.5}
_WEIGHT_RANGE = (0.1, 1.0)
_USUAL = 0.8  # how often a signal has its usual sign


class Grammar:
    """The grammar under an interface."""

    def __init__(self, interface: Interface) -> None:
        """Find out which signals the interface's features allow."""
        self.interface = interface
        self._choices = [each for each in SIGNALS if self._vectors(each) and interface.offers(*each.features - {"x"})]

    def _vectors(self, signal: Signal) -> Sequence[str]:
        if "{x}" not in signal.pattern:
            return ("",)
        return [each for each in signal.vectors if self.interface.offers(each)]

    @property
    def empty(self) -> bool:
        """Whether the interface offers no feature that any signal is made of."""
        return not self._choices

    def singles(self) -> list[tuple[Form, str]]:
        """A program for each kind of signal, its numbers in the middle of their ranges, with notes."""
        found = []
        slots = {name: _odd(math.sqrt(each.low * each.high), each) for name, each in SLOTS.items()}
        for signal in self._choices:
            for vectors in self._vectors(signal):
                body = parse(signal.pattern.format(x=vectors, over="mean", **slots))
                score = body if signal.usual > 0 else ast.UnaryOp(ast.USub(), body)
                found.append((self._form(score, protection(4, 8)), f"Single signal: {described(score, {})}"))
        return found

    def _form(self, score: ast.expr, protect: str) -> Form:
        functions = {"protect": protect} if "protect" in self.interface.editable else {}
        return Form("_parent", "", "", score, {}, {}, functions, {}, {})

    def signal(self, draw: random.Random) -> tuple[ast.expr, int]:
        """A signal, (G, T), and a sign for it, mostly the one that is usual."""
        signal = draw.choices(self._choices, weights=[each.weight for each in self._choices])[0]
        slots = {name: log_whole(draw, each) for name, each in SLOTS.items()}
        over = "mean" if draw.random() < 0.7 else "amax"
        text = signal.pattern.format(x=draw.choice(self._vectors(signal)), over=over, **slots)
        return parse(text), signal.usual if draw.random() < _USUAL else -signal.usual

    def term(self, draw: random.Random) -> Term:
        """A term: a signal on a common scale, at times pooled along the text, multiplied or gated."""
        signal, sign = self.signal(draw)
        if draw.random() < 0.1:
            signal = ast.BinOp(signal, ast.Mult(), self.signal(draw)[0])
        if draw.random() < 0.3:
            signal = wrap(draw.choice(list(POOLS)), signal, log_whole(draw, SLOTS["width"]))
        norm = draw.choices(list(_NORM_WEIGHTS), weights=list(_NORM_WEIGHTS.values()))[0]
        body: ast.expr = wrap(norm, signal)
        if draw.random() < 0.08 and self.interface.offers("layer", "layers"):
            body = ast.BinOp(parse(draw.choice(list(DEPTHS))), ast.Mult(), body)
        weight = rounded_weight(math.exp(draw.uniform(*map(math.log, _WEIGHT_RANGE))))
        return Term(weight * sign, body)

    def score(self, draw: random.Random, terms: int | None = None) -> ast.expr:
        """A whole score of so many terms, or of 2 to 5."""
        count = draw.choices((2, 3, 4, 5), weights=(3, 4, 3, 2))[0] if terms is None else terms
        around: list[ast.Call] = []
        hole = ast.Name("f", ast.Load())
        if draw.random() < 0.25:
            around.append(wrap(draw.choice(list(POOLS)), hole, log_whole(draw, SLOTS["width"])))
        if draw.random() < 0.15:
            around.append(wrap(SHARED, hole, draw.choice((0.3, 0.5, 0.7))))
        return join(Sum(tuple(around), tuple(self.term(draw) for _ in range(count))))

    def program(self, draw: random.Random, terms: int | None = None) -> Form:
        """A whole program: a score and, where the interface allows it, protection and a selector."""
        form = self._form(self.score(draw, terms), protection(*draw.choice(((4, 8), (4, 16), (1, 4), (4, 32), (8, 8)))))
        if "protect" in self.interface.editable and draw.random() < 0.2:
            return replace(form, functions={**form.functions, "select_tokens_to_keep": selector(draw)})
        return form


def log_whole(draw: random.Random, within: Range) -> int:
    """A whole number, drawn evenly on a logarithmic scale."""
    return _odd(math.exp(draw.uniform(math.log(within.low), math.log(within.high))), within)


def _odd(value: float, within: Range) -> int:
    whole = min(within.high, max(within.low, round(value)))
    return whole if not within.odd or whole % 2 else max(within.low, whole - 1)


def changed_whole(draw: random.Random, value: int, within: Range) -> int:
    """Another whole number nearby, on a logarithmic scale; the same one only where there is no other."""
    for _ in range(20):
        moved = _odd(max(value, 1) * math.exp(draw.gauss(0, 0.6)), within)
        if moved != value:
            return moved
        step = (2 if within.odd else 1) * draw.choice((-1, 1))
        if within.low <= value + step <= within.high:
            return value + step
    return value


def protection(first: int, last: int) -> str:
    """Source of a `protect`."""
    return (
        f"def protect(f: Features, *, sinks: int = {first}, recent: int = {last}) -> tuple[int, int]:\n"
        '    """The first entries, which take up attention that goes nowhere, and the most recent ones."""\n'
        "    return sinks, recent"
    )


_SELECTORS = {
    "chunks": '''def select_tokens_to_keep(scores: Tensor, keep: Tensor, f: Features, *, size: int = {size}) -> Tensor:
    """The best chunks of neighbouring entries, each kv head for itself."""
    return chunks(scores, keep, f.protected, size=size, per_head=True)''',
    "common": '''def select_tokens_to_keep(scores: Tensor, keep: Tensor, f: Features, *, size: int = {size}) -> Tensor:
    """The best chunks of neighbouring entries, the same for all kv heads."""
    return chunks(scores, keep, f.protected, size=size)''',
    "tokens and chunks": '''def select_tokens_to_keep(
    scores: Tensor, keep: Tensor, f: Features, *, size: int = {size}, share: float = {share}
) -> Tensor:
    """A share of the budget by single entries, the rest by chunks of neighbours."""
    best = tokens(scores, (keep * share).long(), f.protected)
    return chunks(scores, keep, f.protected | best, size=size, per_head=True)''',
}


def selector(draw: random.Random) -> str:
    """Source of a `select_tokens_to_keep`."""
    pattern = _SELECTORS[draw.choice(list(_SELECTORS))]
    return pattern.format(size=draw.choice((2, 3, 4, 6, 8, 12, 16, 20)), share=draw.choice((0.3, 0.5, 0.7)))
