"""Changes to a score: terms added, dropped, weighed, turned, swapped, pooled, gated, combined, shared over heads.

Each operator takes a policy apart and gives another one with a note that says what it did, or None where it does not
apply. Chance comes from the generator that is handed in.
"""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Callable
from dataclasses import replace

from cachecraft.evolution.proposers.form import Form, called, parse, put
from cachecraft.evolution.proposers.grammar import LARGEST_SUM, Grammar
from cachecraft.evolution.proposers.terms import (
    Sum,
    Term,
    calls_of,
    join,
    normalised,
    rounded_weight,
    signals,
    split,
)
from cachecraft.evolution.proposers.vocabulary import (
    POOLS,
    SHARED,
    VECTORS,
    described,
)

Change = tuple[Form, str]
Operator = Callable[[random.Random, Form, Grammar], Change | None]
_SHARES = (0.2, 0.3, 0.5, 0.7)


def sum_of(form: Form) -> Sum:
    """A policy's score as a sum; parameters that weigh its terms become numbers."""
    defaults = {name: float(default) for name, (_, default) in form.parameters.items() if _is_float(default)}
    return split(form.score, defaults)


def _is_float(text: str) -> bool:
    try:
        return isinstance(ast.literal_eval(text), float)
    except (ValueError, SyntaxError):
        return False


def with_sum(form: Form, found: Sum) -> Form:
    """The policy with this sum for its score."""
    return form.with_score(join(found))


def with_term(form: Form, found: Sum, place: int, term: Term) -> Form:
    """The policy with another term in one place of its sum."""
    terms = [*found.terms[:place], term, *found.terms[place + 1 :]]
    return with_sum(form, replace(found, terms=tuple(terms)))


def any_place(draw: random.Random, found: Sum) -> int:
    """The place of any term."""
    return draw.randrange(len(found.terms))


def told(form: Form, node: ast.expr) -> str:
    """What a note calls a part of the score."""
    return described(node, form.names)


def reweigh(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """Another weight for a term, on a logarithmic scale."""
    found = sum_of(form)
    if len(found.terms) < 2:
        return None
    place = any_place(draw, found)
    term = found.terms[place]
    weight = rounded_weight(term.weight * math.exp(draw.gauss(0, 0.7)))
    note = f"Weighed {told(form, term.body)} with {weight:g} instead of {rounded_weight(term.weight):g}"
    return with_term(form, found, place, Term(weight, term.body)), note


def reweigh_all(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """Slightly other weights for all terms at once."""
    found = sum_of(form)
    if len(found.terms) < 2:
        return None
    terms = tuple(Term(rounded_weight(each.weight * math.exp(draw.gauss(0, 0.3))), each.body) for each in found.terms)
    return with_sum(form, replace(found, terms=terms)), "Shifted all weights"


def turn(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """The other sign for a term."""
    found = sum_of(form)
    place = any_place(draw, found)
    term = found.terms[place]
    return (
        with_term(form, found, place, Term(-term.weight, term.body)),
        f"Turned the sign of {told(form, term.body)}",
    )


def add_term(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """One more term; the others are brought to a common scale first."""
    found = sum_of(form)
    if len(found.terms) >= LARGEST_SUM or grammar.empty:
        return None
    terms = [normalised(term) for term in found.terms]
    if len(terms) == 1:  # its weight meant nothing so far
        terms = [Term(math.copysign(0.5, terms[0].weight), terms[0].body)]
    usual = sum(abs(term.weight) for term in terms) / len(terms)
    new = grammar.term(draw)
    new = Term(rounded_weight(math.copysign(usual * math.exp(draw.uniform(-1.2, 0.3)), new.weight)), new.body)
    note = f"{'Added' if new.weight > 0 else 'Took off'} {told(form, new.body)}"
    return with_sum(form, replace(found, terms=(*terms, new))), note


def drop_term(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """One term less."""
    found = sum_of(form)
    if len(found.terms) < 2:
        return None
    place = any_place(draw, found)
    return _dropped(form, found, place)


def simplify(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """The term of the smallest weight goes, or a step that is done to signals or to the sum."""
    found = sum_of(form)
    steps = [call for term in found.terms for call in calls_of(term.body, (*POOLS, SHARED))]
    if found.around and draw.random() < 0.3:
        return with_sum(form, replace(found, around=found.around[1:])), "Left the sum as it is"
    if steps and draw.random() < 0.4:
        call = draw.choice(steps)
        return put_in(form, call, call.args[0], f"No longer {called(call).strip('_')} {told(form, call.args[0])}")
    if len(found.terms) < 2:
        return None
    smallest = min(range(len(found.terms)), key=lambda place: abs(found.terms[place].weight))
    return _dropped(form, found, smallest)


def _dropped(form: Form, found: Sum, place: int) -> Change:
    terms = (*found.terms[:place], *found.terms[place + 1 :])
    return with_sum(form, replace(found, terms=terms)), f"Dropped {told(form, found.terms[place].body)}"


def put_in(form: Form, target: ast.expr, new: ast.expr, note: str) -> Change | None:
    """Replace a part of one term, wherever it is."""
    found = sum_of(form)
    for place, term in enumerate(found.terms):
        if any(node is target for node in ast.walk(term.body)):
            return with_term(form, found, place, Term(term.weight, put(term.body, target, new))), note
    return None


def swap_signal(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """Another signal in the place of one; where it is alone in its term, with the sign that is usual for it."""
    if grammar.empty:
        return None
    found = sum_of(form)
    place = any_place(draw, found)
    term = found.terms[place]
    known = signals(term.body)
    old = draw.choice(known)
    new, sign = grammar.signal(draw)
    weight = abs(term.weight) * sign if len(known) == 1 else term.weight
    changed = Term(weight, put(term.body, old, new))
    return with_term(form, found, place, changed), f"Replaced {told(form, old)} by {told(form, new)}"


def swap_vectors(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """The same signal of other vectors: keys, values or unrotated keys."""
    known = [each for term in sum_of(form).terms for each in signals(term.body) if _vectors_of(each)]
    if not known:
        return None
    old = draw.choice(known)
    others = [name for name in VECTORS if name not in _vectors_of(old) and grammar.interface.offers(name)]
    if not others:
        return None
    target = next(node for node in ast.walk(old) if isinstance(node, ast.Attribute) and node.attr in VECTORS)
    new = put(old, target, ast.Attribute(target.value, draw.choice(others), ast.Load()))
    return put_in(form, old, new, f"Replaced {told(form, old)} by {told(form, new)}")


def _vectors_of(node: ast.expr) -> set[str]:
    attributes = [each for each in ast.walk(node) if isinstance(each, ast.Attribute)]
    return {each.attr for each in attributes if each.attr in VECTORS and ast.unparse(each.value) == "f"}


def combine(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """Two terms become one: their product, or the larger or smaller of them; or a product comes apart."""
    found = sum_of(form)
    products = [place for place, term in enumerate(found.terms) if len(signals(term.body)) > 1]
    if products and draw.random() < 0.4 and len(found.terms) < LARGEST_SUM:
        place = draw.choice(products)
        term = found.terms[place]
        parts = tuple(normalised(Term(term.weight / 2, each)) for each in signals(term.body))[: LARGEST_SUM - place]
        rest = (*found.terms[:place], *found.terms[place + 1 :])
        if len(parts) + len(rest) > LARGEST_SUM:
            return None
        return with_sum(form, replace(found, terms=(*rest, *parts))), f"Took {told(form, term.body)} apart"
    if len(found.terms) < 2:
        return None
    one, two = sorted(draw.sample(range(len(found.terms)), 2))
    left, right = normalised(found.terms[one]), normalised(found.terms[two])
    how = draw.choice(("times", "maximum", "minimum"))
    body = (
        ast.BinOp(left.body, ast.Mult(), right.body)
        if how == "times"
        else ast.Call(parse(f"torch.{how}"), [left.body, right.body], [])
    )
    rest = tuple(term for place, term in enumerate(found.terms) if place not in (one, two))
    return with_sum(form, replace(found, terms=(*rest, Term(left.weight, body)))), f"Combined into {told(form, body)}"
