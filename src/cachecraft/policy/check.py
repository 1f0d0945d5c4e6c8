"""Does a policy keep the contract? Runs it on synthetic layers and says each broken rule in a sentence.

It never raises for what a policy does. It runs the program in this process: it finds mistakes, it is no
sandbox.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from cachecraft.errors import CacheCraftError
from cachecraft.policy.contract import Policy
from cachecraft.policy.decide import Decision, decide, keep_count, score
from cachecraft.policy.features import LayerFeatures, RotaryTable
from cachecraft.policy.invariants import NondeterminismError, StateLeakError

_RATIOS = (0.0, 0.5, 0.88, 0.99)
_HIDDEN, _WIDTH = 24, 16
_ODD_SEED = 0x5EED_0DD  # one that no program sets, so that setting a seed shows


@dataclass(frozen=True)
class _Case:
    """One synthetic layer: its size, how many heads, its dtype and its content."""

    tokens: int
    kv_heads: int = 2
    group: int = 2
    dtype: torch.dtype = torch.float32
    seed: int = 0

    def layer(self) -> LayerFeatures:
        """Build it; always the same content."""
        return synthetic_layer(
            self.tokens,
            kv_heads=self.kv_heads,
            group=self.group,
            dtype=self.dtype,
            seed=self.seed,
            strict=True,
        )


_CASES = (
    _Case(1),
    _Case(2),
    _Case(7, kv_heads=1, group=3),
    _Case(65),
    _Case(65, seed=1),  # the same size with other content: a cache by size shows here
    _Case(300, kv_heads=3, group=1),
    _Case(65, dtype=torch.bfloat16),
)


def synthetic_layer(
    tokens: int,
    *,
    kv_heads: int = 2,
    group: int = 2,
    head_dim: int = _WIDTH,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    strict: bool = False,
    layer: int = 0,
    layers: int = 2,
) -> LayerFeatures:
    """A layer of random content that offers every feature.

    Args:
        tokens: T, entries.
        kv_heads: G.
        group: Query heads per kv head.
        head_dim: D, even.
        dtype: Of keys, values, queries and the output projection.
        seed: Of the content.
        strict: As for ``LayerFeatures``.
        layer: Index of the layer.
        layers: Number of layers.
    """
    draw = torch.Generator().manual_seed(seed * 1000 + tokens)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).to(dtype)

    frequencies = 10000.0 ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = torch.arange(tokens + 512, dtype=torch.float32)[:, None] * frequencies.repeat(2)
    return LayerFeatures(
        normal(kv_heads, tokens, head_dim),
        normal(kv_heads, tokens, head_dim),
        normal(kv_heads * group, tokens, head_dim),
        layer=layer,
        layers=layers,
        rotary=RotaryTable(angles.cos(), angles.sin()),
        output_projection=normal(kv_heads * group, head_dim, _HIDDEN),
        special_mask=torch.arange(tokens) < 1,
        punctuation_mask=torch.arange(tokens) % 5 == 4,
        seed=seed,
        strict=strict,
    )


def _keeps(case: _Case) -> list[Tensor]:
    counts = [keep_count(case.tokens, ratio) for ratio in _RATIOS]
    keeps = [torch.full((case.kv_heads,), count) for count in counts]
    keeps.append((torch.arange(case.kv_heads) + 1).clamp(max=case.tokens))  # heads of unequal budgets
    return keeps


@dataclass(frozen=True)
class _Outcome:
    scores: Tensor
    decisions: list[Decision]

    def same(self, other: _Outcome) -> bool:
        """Bit for bit."""
        pairs = zip(self.decisions, other.decisions, strict=True)
        return torch.equal(self.scores, other.scores) and all(torch.equal(a.mask, b.mask) for a, b in pairs)


def _outcome(policy: Policy, case: _Case, *, backwards: bool = False) -> _Outcome:
    layer = case.layer()
    keeps = _keeps(case)
    scores = score(policy, layer, keeps[1]).scores.clone()
    decisions = decide(policy, layer, keeps[::-1] if backwards else keeps)
    return _Outcome(scores, decisions[::-1] if backwards else decisions)


def check_repeatable(policy: Policy, case_seed: int = 0, tokens: int = 65) -> None:
    """A policy gives the same result for the same input, whoever asks first and whatever ran before.

    Raises:
        NondeterminismError: Two fresh copies of the program differ, or it touches torch's global random
            state.
        StateLeakError: One copy differs from itself on a second call or after other samples.
        InvariantError: Any other rule that it breaks on the way.
    """
    case = _Case(tokens, seed=case_seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_ODD_SEED)
        state = torch.random.get_rng_state()
        first = _outcome(policy.reloaded(), case)
        touched = not torch.equal(state, torch.random.get_rng_state())
    if touched:
        raise NondeterminismError(
            f"Policy {policy.name} uses torch's global random state; pass generator=f.generator() instead."
        )
    used = policy.reloaded()
    if not first.same(_outcome(used, case)):
        raise NondeterminismError(
            f"Policy {policy.name} gave two results for one input of {tokens} entries; draw random numbers "
            "with f.generator() and use no clock, set order or hash."
        )
    _refuse_state(used, first, case, "when it was asked a second time")
    score(used, case.layer(), _keeps(case)[0])  # one call alone, for programs that count in pairs
    _refuse_state(used, first, case, "when the budgets came in another order", backwards=True)
    for other in (_Case(tokens, seed=case_seed + 1), _Case(tokens + 9, kv_heads=1)):
        used = policy.reloaded()  # one that sees the other sample before this one
        _outcome(used, other)
        _refuse_state(used, first, case, "after another sample")


def _refuse_state(policy: Policy, first: _Outcome, case: _Case, when: str, *, backwards: bool = False) -> None:
    if not first.same(_outcome(policy, case, backwards=backwards)):
        raise StateLeakError(
            f"Policy {policy.name} gave another result for the same {case.tokens} entries {when}; keep "
            "nothing between calls."
        )


def _breaks(policy: Policy) -> Iterator[CacheCraftError]:
    for case in _CASES:
        layer_policy = policy.reloaded()
        try:
            _outcome(layer_policy, case)
        except CacheCraftError as error:
            yield error
    for seed in (0, 5):
        try:
            check_repeatable(policy, seed)
        except CacheCraftError as error:
            yield error


def broken_rules(policy: Policy) -> list[CacheCraftError]:
    """Try a policy on synthetic layers, as `check_policy` does; the first error of each rule that it breaks."""
    found: dict[type[CacheCraftError], CacheCraftError] = {}
    with torch.random.fork_rng(devices=[]):
        for error in _breaks(policy):
            found.setdefault(type(error), error)
    return list(found.values())


def check_policy(policy: Policy) -> list[str]:
    """Try a policy on synthetic layers.

    Contexts of 1 to 300 entries, grouped and single query heads, float32 and bfloat16, ratios from 0 to 0.99,
    unequal budgets of heads; repeated, in another order, after other samples, and from a fresh copy of the
    program.

    Args:
        policy: The policy.

    Returns:
        One sentence for each rule that is broken, the first case of each; an empty list if the contract is
        kept.
    """
    return [str(error) for error in broken_rules(policy)]
