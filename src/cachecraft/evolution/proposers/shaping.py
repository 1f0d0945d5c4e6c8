"""Changes to how a score's signals are shaped: normalised, pooled along the text, gated, shared over heads.

Operators as in operators.py.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from cachecraft.evolution.proposers.form import Form, called, parse
from cachecraft.evolution.proposers.grammar import Grammar, log_whole
from cachecraft.evolution.proposers.operators import (
    Change,
    Operator,
    add_term,
    any_place,
    combine,
    drop_term,
    put_in,
    reweigh,
    reweigh_all,
    simplify,
    sum_of,
    swap_signal,
    swap_vectors,
    told,
    turn,
    with_sum,
    with_term,
)
from cachecraft.evolution.proposers.terms import Term, calls_of, factors, normalised, product, signals, wrap
from cachecraft.evolution.proposers.vocabulary import DEPTHS, NORMS, POOLS, SHARED, SLOTS

_SHARES = (0.2, 0.3, 0.5, 0.7)


def renormalise(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """Another normalisation of a signal."""
    calls = [call for term in sum_of(form).terms for call in calls_of(term.body, tuple(NORMS))]
    if not calls:
        return None
    call = draw.choice(calls)
    name = draw.choice([each for each in NORMS if each != called(call)])
    new = wrap(name, call.args[0])
    if name == "_logged":  # a logarithm is no scale of its own
        new = wrap("_standardised", new)
    return put_in(
        form,
        call,
        new,
        f"{name.strip('_').capitalize()} instead of {called(call).strip('_')} {told(form, call.args[0])}",
    )


def pool(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """A signal smoothed or peaked along the text, or no longer, or otherwise."""
    found = sum_of(form)
    body = found.terms[any_place(draw, found)].body
    pools = calls_of(body, tuple(POOLS))
    if pools and draw.random() < 0.5:
        call = draw.choice(pools)
        if draw.random() < 0.5:
            return put_in(form, call, call.args[0], f"No longer {called(call).strip('_')} {told(form, call.args[0])}")
        other = next(each for each in POOLS if each != called(call))
        new = ast.Call(ast.Name(other, ast.Load()), call.args, [])
        return put_in(form, call, new, f"{other.strip('_').capitalize()} {told(form, call.args[0])}")
    old = draw.choice([*signals(body), *calls_of(body, tuple(NORMS))])
    name = draw.choice(list(POOLS))
    new = wrap(name, old, log_whole(draw, SLOTS["width"]))
    return put_in(form, old, new, f"{name.strip('_').capitalize()} {told(form, old)}")


def pool_sum(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """The sum as a whole smoothed, peaked or shared over heads, or no longer."""
    found = sum_of(form)
    if len(found.terms) < 2:
        return None
    if found.around and draw.random() < 0.4:
        return with_sum(form, replace(found, around=found.around[1:])), "Left the sum as it is"
    if len(found.around) >= 2:
        return None
    name = draw.choice([*POOLS, SHARED])
    number = draw.choice(_SHARES) if name == SHARED else log_whole(draw, SLOTS["width"])
    call = wrap(name, ast.Name("f", ast.Load()), number)
    return with_sum(form, replace(found, around=(call, *found.around))), f"{name.strip('_').capitalize()} the sum"


def gate(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """A term that counts more in late or early layers, or late in the text; or no longer does."""
    found = sum_of(form)
    place = any_place(draw, found)
    term = found.terms[place]
    parts = factors(term.body)
    gates = [each for each in parts if ast.unparse(each) in (*DEPTHS, "_recency(f)")]
    if gates and len(parts) > len(gates):
        body = product([each for each in parts if each not in gates])
        return with_term(form, found, place, Term(term.weight, body)), f"No gate for {told(form, body)}"
    offered = list(DEPTHS) if grammar.interface.offers("layer", "layers") and len(found.terms) > 1 else []
    offered += ["_recency(f)"] if grammar.interface.offers("positions") else []
    if not offered:
        return None
    choice = draw.choice(offered)
    scaled = normalised(term)
    body = product([parse(choice), *factors(scaled.body)])
    return with_term(form, found, place, Term(term.weight, body)), f"Gated {told(form, term.body)}"


def heads(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """The group's heads brought together otherwise, or a signal shared over the kv heads, or no longer."""
    bodies = [term.body for term in sum_of(form).terms]
    over = [
        node
        for body in bodies
        for node in ast.walk(body)
        if isinstance(node, ast.Attribute) and node.attr in ("mean", "amax") and "attention" in ast.unparse(node.value)
    ]
    if over and draw.random() < 0.5:
        node = draw.choice(over)
        other = "amax" if node.attr == "mean" else "mean"
        return put_in(
            form, node, ast.Attribute(node.value, other, ast.Load()), f"Took the {other} of {told(form, node)}"
        )
    shares = [call for body in bodies for call in calls_of(body, (SHARED,))]
    if shares:
        call = draw.choice(shares)
        return put_in(form, call, call.args[0], f"No longer shared {told(form, call.args[0])}")
    calls = [call for body in bodies for call in calls_of(body, tuple(NORMS))]
    if not calls:
        return None
    call = draw.choice(calls)
    new = wrap(SHARED, call, draw.choice(_SHARES))
    return put_in(form, call, new, f"Shared {told(form, call.args[0])} over the kv heads")


SCORE_OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        "reweigh": reweigh,
        "reweigh all": reweigh_all,
        "turn": turn,
        "add term": add_term,
        "drop term": drop_term,
        "simplify": simplify,
        "swap signal": swap_signal,
        "swap vectors": swap_vectors,
        "renormalise": renormalise,
        "pool": pool,
        "pool sum": pool_sum,
        "combine": combine,
        "gate": gate,
        "heads": heads,
    }
)
