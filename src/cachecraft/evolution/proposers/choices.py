"""Changes to what surrounds a score (protection, selector, allocation), and programs made of two parents.

Operators as in operators.py.
"""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from cachecraft.evolution.proposers.form import Form
from cachecraft.evolution.proposers.grammar import LARGEST_SUM, Grammar, protection, selector
from cachecraft.evolution.proposers.operators import Change, Operator, sum_of, with_sum
from cachecraft.evolution.proposers.terms import Sum, Term, normalised
from cachecraft.evolution.proposers.vocabulary import IMPORTS

_PROTECTIONS = ((0, 0), (0, 8), (1, 4), (4, 4), (4, 8), (4, 16), (4, 32), (8, 16), (16, 16))


def _function(form: Form, name: str, source: str | None) -> Form:
    """The policy with another function of the contract, or without it; the imports it needs are the grammar's own."""
    functions = {key: text for key, text in form.functions.items() if key != name}
    if source is not None:
        functions[name] = source
        used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
        clash = [each for each in used & form.imports.keys() & IMPORTS.keys() if form.imports[each] != IMPORTS[each]]
        if clash or used & form.helpers.keys():
            raise ValueError(f"The program means something else by {', '.join(sorted(clash)) or 'a name'}.")
    return replace(form, functions=functions)


def protect_otherwise(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """Other sizes of what is always kept."""
    first, last = draw.choice(_PROTECTIONS)
    new = protection(first, last)
    if form.functions.get("protect") == new:
        return None
    return _function(form, "protect", new), f"Protected the first {first} and the last {last} entries"


def select_otherwise(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """Another selector, or single entries by score."""
    before = form.functions.get("select_tokens_to_keep")
    if before is not None and draw.random() < 0.4:
        return _function(form, "select_tokens_to_keep", None), "Chose single entries by score"
    new = selector(draw)
    found = re.search(r'"""(.+)"""', new)
    return _function(form, "select_tokens_to_keep", new), f"Chose otherwise: {found[1] if found else ''}".rstrip(".")


_ALLOCATIONS = {
    "depth": '''def allocate(scores: Sequence[Tensor], total: int, floor: int, *, slope: float = {slope}) -> Tensor:
    """Layers keep more or less the deeper they are, in a straight line; heads of a layer keep alike."""
    layers, (heads, length) = len(scores), scores[0].shape
    line = torch.linspace(1 + slope, 1 - slope, layers, dtype=torch.float64)
    wanted = (line * total / (layers * heads))[:, None].expand(layers, heads).reshape(-1)
    return _whole_shares(wanted, total, floor, length).view(layers, heads)''',
    "contrast": '''def allocate(scores: Sequence[Tensor], total: int, floor: int, *, share: float = {share}) -> Tensor:
    """A share of the budget follows how far each head's scores lie apart; the rest is the same for all."""
    layers, (heads, length) = len(scores), scores[0].shape
    apart = torch.stack([each.double().std(dim=-1, correction=0) for each in scores]).reshape(-1)
    weights = (1 - share) / len(apart) + share * apart / apart.sum().clamp(min=1e-12)
    return _whole_shares(weights / weights.sum() * total, total, floor, length).view(layers, heads)''',
}
_WHOLE_SHARES = '''def _whole_shares(wanted: Tensor, total: int, floor: int, most: int) -> Tensor:
    """Whole numbers from ``floor`` to ``most`` that sum to ``total`` and are close to what is wanted."""
    counts = wanted.clamp(min=floor, max=most).floor().long()
    for _ in range(len(counts) + 2):  # each round fills somebody's room or is the last
        left = total - int(counts.sum())
        sign = 1 if left >= 0 else -1
        room = most - counts if left > 0 else counts - floor
        even = abs(left) // max(1, int((room > 0).sum()))
        first = ((wanted - counts) * sign).masked_fill(room == 0, -torch.inf).argsort(descending=True, stable=True)
        single = torch.zeros_like(counts).scatter(0, first[: abs(left) if even == 0 else 0], 1)
        counts = counts + sign * (room.clamp(max=even) if even else single)
    return counts'''


def allocate_otherwise(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """Another division of the budget over layers and heads, or the same for all."""
    if "allocate" in form.functions and draw.random() < 0.2:
        return _function(form, "allocate", None), "Gave every layer and head the same"
    name = draw.choice(list(_ALLOCATIONS))
    slope, share = draw.choice((-0.6, -0.3, 0.3, 0.6)), draw.choice((0.2, 0.5, 0.8))
    new = _function(form, "allocate", _ALLOCATIONS[name].format(slope=slope, share=share))
    helpers = dict(new.helpers) | {"_whole_shares": _WHOLE_SHARES}
    imports = dict(new.imports) | {"Sequence": "from collections.abc import Sequence", "torch": IMPORTS["torch"]}
    return replace(new, helpers=helpers, imports=imports), f"Divided the budget by {name}"


def fresh(draw: random.Random, form: Form, grammar: Grammar) -> Change | None:
    """A program of its own, drawn from the grammar; what is protected stays the parent's."""
    if grammar.empty:
        return None
    drawn = grammar.program(draw)
    kept = {name: text for name, text in form.functions.items() if name not in grammar.interface.editable}
    own = replace(drawn, functions=dict(drawn.functions) | kept, helpers=form.helpers if kept else {})
    return replace(own, imports=form.imports if kept else {}), "Drew a program from the grammar"


def crossover(draw: random.Random, form: Form, other: Form, grammar: Grammar) -> Change | None:
    """Terms of both parents; what is protected, and all else but the score, is the first one's."""
    joined = _joined(form, other)
    if joined is None:
        return None
    form, other = joined
    mine, theirs = sum_of(form), sum_of(other)
    own = [normalised(term) for term in mine.terms]
    new = [normalised(term) for term in theirs.terms]
    if len(own) > 1:
        own = [term for term in own if draw.random() < 0.7] or [draw.choice(own)]
    taken = [term for term in new if draw.random() < 0.6] or [draw.choice(new)]
    own, taken = _leveled(own), _leveled(taken)
    known = {ast.dump(term.body) for term in own}
    terms = [*own, *(term for term in taken if ast.dump(term.body) not in known)][:LARGEST_SUM]
    if len(terms) < 2:
        return None
    around = mine.around if draw.random() < 0.5 else theirs.around
    imports = dict(other.imports) | dict(form.imports)
    helpers = dict(other.helpers) | dict(form.helpers)
    parameters = dict(other.parameters) | dict(form.parameters)
    names = dict(other.names) | dict(form.names)
    merged = replace(form, imports=imports, helpers=helpers, parameters=parameters, names=names)
    return with_sum(
        merged, Sum(around, tuple(terms))
    ), f"Put terms of both parents together: {len(own)} and {len(taken)}"


def _leveled(terms: list[Term]) -> list[Term]:
    """The same terms with weights whose sizes sum to one, so that both parents weigh alike."""
    whole = sum(abs(term.weight) for term in terms)
    return [Term(term.weight / whole, term.body) for term in terms]


def _joined(form: Form, other: Form) -> tuple[Form, Form] | None:
    """Two policies whose names mean the same in both; None where they do not.

    Parameters of the second that the first also has are taken apart by a new name.
    """
    for name in form.imports.keys() & other.imports.keys():
        if form.imports[name] != other.imports[name]:
            return None
    if form.imports.keys() & other.helpers.keys() or form.helpers.keys() & other.imports.keys():
        return None
    if any(form.helpers[name] != other.helpers[name] for name in form.helpers.keys() & other.helpers.keys()):
        return None
    clash = [
        name for name in other.parameters if name in form.parameters and form.parameters[name] != other.parameters[name]
    ]
    own = {name for text in form.functions.values() for name in re.findall(r"\w+", text)}
    clash += [name for name in other.parameters if name in own and name not in clash]
    renamed = {name: f"other_{name}" for name in clash}
    if not renamed:
        return form, other
    score = _Renamed(renamed).visit(ast.parse(ast.unparse(other.score), mode="eval").body)
    parameters = {renamed.get(name, name): value for name, value in other.parameters.items()}
    return form, replace(other, score=score, parameters=parameters)


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self._names.get(node.id, node.id), node.ctx)


SELECTOR_OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {"protect": protect_otherwise, "select": select_otherwise}
)
ALLOCATION_OPERATORS: Mapping[str, Operator] = MappingProxyType({"allocate": allocate_otherwise})
