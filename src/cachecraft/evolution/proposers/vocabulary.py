"""The words of the grammar: signals with their names and phrases, the building blocks' source, and limits of numbers.

One table serves three ends: making a signal, recognising it in any program, and saying what it is.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

from cachecraft.evolution.proposers import signals
from cachecraft.evolution.proposers.form import Form, called, key

IMPORTS: Mapping[str, str] = MappingProxyType(
    {
        "torch": "import torch",
        "Tensor": "from torch import Tensor",
        "Features": "from cachecraft.policy.features import Features",
        **{
            name: f"from torch.nn.functional import {name}"
            for name in ("avg_pool1d", "cosine_similarity", "max_pool1d", "normalize", "pad")
        },
        **{name: f"from cachecraft.policy.selectors import {name}" for name in ("chunks", "pages", "tokens")},
    }
)
VECTORS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"keys": ("key", "keys"), "values": ("value", "values"), "keys_unrotated": ("plain_key", "unrotated keys")}
)
NORMS: Mapping[str, str] = MappingProxyType(
    {
        "_ranked": "",
        "_standardised": "standardised ",
        "_scaled": "scaled ",
        "_softened": "softened ",
        "_logged": "logarithm of ",
    }
)
POOLS: Mapping[str, str] = MappingProxyType({"_smoothed": "smoothed ", "_peaked": "peaks of "})
SHARED = "_shared"
# Factors that let a term count more in late layers, or in early ones.
DEPTHS: Mapping[str, str] = MappingProxyType(
    {"(f.layer + 1) / f.layers": "depth", "1 - f.layer / f.layers": "shallowness"}
)
WRAPPERS: Mapping[str, str] = MappingProxyType({**NORMS, **POOLS, SHARED: "shared "})


@dataclass(frozen=True)
class Range:
    """Whole numbers from `low` to `high` that are drawn and changed on a logarithmic scale; `odd` ones only."""

    low: int
    high: int
    odd: bool = False


SLOTS: Mapping[str, Range] = MappingProxyType(
    {
        "before": Range(1, 512),
        "around": Range(3, 513, odd=True),
        "power": Range(1, 8),
        "width": Range(3, 65, odd=True),
        "span": Range(2, 512),
        "window": Range(1, 256),
        "ahead": Range(16, 512),
    }
)


@dataclass(frozen=True)
class Signal:
    """A kind of signal.

    Attributes:
        pattern: Its expression; ``{x}`` stands for one of `VECTORS`, ``{over}`` for how a group's heads are brought
            together, the others are the ranges of `SLOTS`.
        name: What a program calls it; ``{x}`` is put in.
        phrase: What a docstring calls it.
        weight: How often it is drawn, relative to the others.
        vectors: Which vectors it can be made of.
        usual: 1 if entries of large values tend to be worth keeping when a context is compressed before the question
            is known, -1 if those of small ones do; seen on the search items of SmolLM2, and no more than a bias.
    """

    pattern: str
    name: str
    phrase: str
    weight: float = 1.0
    vectors: tuple[str, ...] = tuple(VECTORS)
    usual: int = 1

    @property
    def features(self) -> frozenset[str]:
        """Features that it reads whatever its vectors are."""
        block = self.pattern.partition("(")[0]
        return frozenset(re.findall(r"\bf\.(\w+)", self.pattern)) | _INSIDE.get(block, frozenset())

    @property
    def regex(self) -> re.Pattern[str]:
        """What matches the expressions of this kind as `ast.unparse` writes them."""
        text = re.escape(self.pattern)
        for slot, inside in {
            "x": "|".join(self.vectors),
            "over": "mean|amax",
            **dict.fromkeys(SLOTS, "[0-9]+"),
        }.items():
            text = text.replace(re.escape(f"{{{slot}}}"), f"(?P<{slot}>{inside})", 1)
        return re.compile(text)


# What the building blocks read that take the features as a whole.
_INSIDE: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "_expected": frozenset({"queries_unrotated", "keys", "rotate"}),
        "_output_norm": frozenset({"output_projection", "values"}),
        "_own_match": frozenset({"queries", "keys"}),
        "_recency": frozenset({"positions"}),
    }
)
SIGNALS = (
    Signal("_unusual(f.{x}, {power})", "unusual_{x}", "unusual channels of {x}", 3),
    Signal("_distance(f.{x})", "{x}_distance", "distance of {x} from their mean", 3),
    Signal("_local_distance(f.{x}, {around})", "{x}_contrast", "contrast of {x} with those around", 3),
    Signal("_novelty(f.{x}, {before})", "{x}_novelty", "novelty of {x}", 2),
    Signal("f.values.norm(dim=-1)", "value_norm", "norm of values", 2),
    Signal("f.keys.norm(dim=-1)", "key_norm", "norm of keys", 2, usual=-1),
    Signal("_output_norm(f)", "output_norm", "length of the value's output", 2),
    Signal("_leverage(f.{x})", "{x}_leverage", "leverage of {x}"),
    Signal("_sharpness(f.{x})", "{x}_sharpness", "sharpness of {x}"),
    Signal("_step(f.{x})", "{x}_step", "change of {x} from the entry before", usual=-1),
    Signal("f.local_attention_received({span}).{over}(dim=1)", "local_attention", "attention from the near future", 3),
    Signal("f.attention_received().{over}(dim=1)", "attention", "attention received", usual=-1),
    Signal(
        "f.window_attention({window}).mean(dim=2).{over}(dim=1)",
        "last_attention",
        "attention of the last queries",
        usual=-1,
    ),
    Signal("_expected(f, {ahead})", "expected_attention", "expected attention"),
    Signal("_own_match(f)", "own_match", "match with its own query"),
    Signal("_recency(f)", "recency", "recency"),
    Signal("_marked(f.punctuation_mask, f.kv_heads)", "punctuation", "punctuation", 0.5, usual=-1),
)


@cache
def blocks() -> Mapping[str, str]:
    """Source of every building block of signals.py by its name in programs, which is private."""
    functions = {
        name: each
        for name, each in vars(signals).items()
        if inspect.isfunction(each) and each.__module__ == signals.__name__
    }
    names = re.compile(rf"(?<![\w.])({'|'.join(functions)})\(")
    return MappingProxyType(
        {f"_{name}": names.sub(r"_\1(", inspect.getsource(each)).rstrip() for name, each in functions.items()}
    )


def clashes(form: Form) -> bool:
    """Whether a program has functions of its own under the names of building blocks that take other arguments."""
    for name in form.helpers.keys() & blocks().keys():
        own, block = (ast.parse(text).body[0] for text in (form.helpers[name], blocks()[name]))
        assert isinstance(block, ast.FunctionDef)
        if not isinstance(own, ast.FunctionDef) or len(own.args.args) != len(block.args.args):
            return True
    return any(name in form.imports for name in blocks()) or any(
        form.imports[name] != IMPORTS[name] for name in form.imports.keys() & IMPORTS.keys()
    )


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Signal], ...]:
    return tuple((signal.regex, signal) for signal in SIGNALS)


@cache
def _recognised(text: str) -> tuple[Signal, str] | None:
    for pattern, signal in _patterns():
        found = pattern.fullmatch(text)
        if found:
            return signal, found.groupdict().get("x", "")
    return None


def name_of(node: ast.expr) -> str:
    """What a program calls this signal; "" if it is none that the table knows."""
    if not isinstance(node, ast.Call | ast.BinOp):
        return ""
    if ast.unparse(node) in DEPTHS:
        return DEPTHS[ast.unparse(node)]
    found = _recognised(ast.unparse(node))
    return found[0].name.format(x=VECTORS[found[1]][0] if found[1] else "") if found else ""


def described(node: ast.expr, names: Mapping[str, str]) -> str:
    """What a score is, in words without numbers.

    Args:
        node: The score or a part of it.
        names: Names that the program gave to parts that the table does not know, by `key`.
    """
    if ast.unparse(node) in DEPTHS:
        return DEPTHS[ast.unparse(node)]
    plus, minus = _signed(node)
    if len(plus) + len(minus) > 1:
        ranked = all(called(each) == "_ranked" for each in (*plus, *minus))
        added, less = (
            [described(_unranked(each) if ranked else each, names) for each in side] for side in (plus, minus)
        )
        text = ", ".join([*added, *(f"less {each}" for each in less)])
        return f"weighted ranks: {text}" if ranked else f"weighted sum: {text}"
    if minus:
        return f"minus {described(minus[0], names)}"
    found = _recognised(ast.unparse(node))
    if found:
        return found[0].phrase.format(x=VECTORS[found[1]][1] if found[1] else "")
    own = names.get(key(node), "").strip("_").replace("_", " ")
    return _compound(node, names) or ("" if own.startswith("common") else own) or _call(node)


def _unranked(node: ast.expr) -> ast.expr:
    return node.args[0] if isinstance(node, ast.Call) and node.args else node


def _compound(node: ast.expr, names: Mapping[str, str]) -> str:
    name = called(node)
    if name in WRAPPERS and isinstance(node, ast.Call) and node.args:
        return f"{WRAPPERS[name]}{described(node.args[0], names)}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = [each for each in (node.left, node.right) if not isinstance(each, ast.Constant | ast.Name)]
        return " times ".join(described(each, names) for each in sides)
    if isinstance(node, ast.Call) and ast.unparse(node.func) in ("torch.maximum", "torch.minimum"):
        which = "larger" if "max" in ast.unparse(node.func) else "smaller"
        return f"the {which} of {' and '.join(described(each, names) for each in node.args)}"
    return ""


def _call(node: ast.expr) -> str:
    """What to call an expression of which nothing is known but the function that it calls."""
    return called(node).strip("_").replace("_", " ") or "another signal"


def _signed(node: ast.expr) -> tuple[list[ast.expr], list[ast.expr]]:
    """The terms of a sum without their weights: those that are added and those that are taken off."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        plus, minus = _signed(node.left)
        more, less = _signed(node.right)
        add = isinstance(node.op, ast.Add)
        return [*plus, *(more if add else less)], [*minus, *(less if add else more)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        plus, minus = _signed(node.operand)
        return minus, plus
    bare = _unweighed(node)
    return ([bare], []) if bare is node else _signed(bare)


def _unweighed(node: ast.expr) -> ast.expr:
    """A product without its numbers and parameters; itself where it has none, or nothing else."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)):
        return node
    left, right = _unweighed(node.left), _unweighed(node.right)
    if _is_weight(left):
        return right
    if _is_weight(right):
        return left
    return node if (left, right) == (node.left, node.right) else ast.BinOp(left, ast.Mult(), right)


def _is_weight(node: ast.expr) -> bool:
    inside = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inside, ast.Constant | ast.Name)
