"""Programs that cheat or break: each is refused with a diagnosis of its own, in use and by the check."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from cachecraft.policy.check import check_policy, check_repeatable, synthetic_layer
from cachecraft.policy.contract import Policy
from cachecraft.policy.decide import decide
from cachecraft.policy.invariants import (
    FeatureWriteError,
    InvariantError,
    KeepCountError,
    KeepMaskError,
    NondeterminismError,
    NonFiniteScoreError,
    PolicyRaisedError,
    ProtectError,
    ProtectionError,
    ScoreDtypeError,
    ScoreShapeError,
    StateLeakError,
)

KNORM = "def score_tokens(f):\n    return -f.keys.norm(dim=-1)\n"
CANARIES: dict[str, tuple[str, type[InvariantError], str]] = {
    "returns NaN": (
        "def score_tokens(f):\n    return f.keys[..., 0] / 0 * 0",
        NonFiniteScoreError,
        "kv head 0",
    ),
    "returns infinity": (
        "def score_tokens(f):\n    s = f.keys[..., 0].clone(); s[-1, -1] = float('inf'); return s",
        NonFiniteScoreError,
        "inf",
    ),
    "returns whole numbers": (
        "def score_tokens(f):\n    return f.positions.expand(f.kv_heads, -1)",
        ScoreDtypeError,
        "int64",
    ),
    "returns query heads": (
        "def score_tokens(f):\n    return f.queries[..., 0]",
        ScoreShapeError,
        r"\(4, 65\)",
    ),
    "returns no tensor": ("def score_tokens(f):\n    return 1.0", ScoreShapeError, "type float"),
    "keeps everything": (
        KNORM + "def select_tokens_to_keep(scores, keep, f):\n    return torch.ones_like(scores).bool()",
        KeepCountError,
        "keeps 65 of 65",
    ),
    "returns duplicate indices": (
        KNORM + "def select_tokens_to_keep(scores, keep, f):\n"
        "    return torch.zeros(f.kv_heads, int(keep[0]), dtype=torch.int64)",
        KeepMaskError,
        "int64",
    ),
    "marks duplicate indices": (
        KNORM + "def select_tokens_to_keep(scores, keep, f):\n    mask = torch.zeros_like(scores).bool()\n"
        "    mask[:, [0] * int(keep[0])] = True\n    return mask",
        KeepCountError,
        "keeps 1 of 65",
    ),
    "drops the protected window": (
        "def protect(f):\n    return 0, 4\n" + KNORM + "def select_tokens_to_keep(scores, keep, f):\n"
        "    return (torch.arange(f.tokens) < int(keep[0])).expand(f.kv_heads, -1)",
        ProtectionError,
        "protected entry",
    ),
    "protects a share": ("def protect(f):\n    return 0, 0.5\n" + KNORM, ProtectError, "0.5"),
    "protects less than nothing": ("def protect(f):\n    return -1, 0\n" + KNORM, ProtectError, "-1"),
    "writes into keys": (
        "def score_tokens(f):\n    k = f.keys; k.mul_(2); return k[..., 0]",
        FeatureWriteError,
        "keys",
    ),
    "writes into values when it selects": (
        KNORM + "def select_tokens_to_keep(scores, keep, f):\n    f.values.zero_()\n"
        "    return torch.arange(f.tokens) < keep[:, None]",
        FeatureWriteError,
        "values",
    ),
    "raises on a hard sample": (
        "def score_tokens(f):\n    if f.tokens > 5:\n        raise ValueError('too hard')\n"
        "    return -f.keys.norm(dim=-1)",
        PolicyRaisedError,
        r"ValueError in score_tokens on layer 0 \(.*mine.py, line 4\): too hard",
    ),
}


@pytest.mark.parametrize("canary", CANARIES)
def test_a_policy_that_breaks_a_rule_is_refused_in_use(canary: str, write_policy: Callable[..., Policy]) -> None:
    text, error, words = CANARIES[canary]
    with pytest.raises(error, match=words):
        decide(write_policy(text), synthetic_layer(65), [torch.tensor([20, 20]), torch.tensor([6, 6])])


@pytest.mark.parametrize("canary", CANARIES)
def test_the_check_says_what_a_policy_breaks(canary: str, write_policy: Callable[..., Policy]) -> None:
    found = check_policy(write_policy(CANARIES[canary][0]))
    assert found
    assert all("mine" in sentence for sentence in found)


@pytest.mark.parametrize("way", ["k.data.mul_(2)", "k.numpy()[:] = 0"])
def test_uncounted_writes_are_refused_by_the_check(way: str, write_policy: Callable[..., Policy]) -> None:
    policy = write_policy(f"def score_tokens(f):\n    k = f.keys; {way}; return k[..., 0].clone()")
    assert any("wrote into keys" in sentence for sentence in check_policy(policy))


def test_randomness_without_the_seed_is_refused(write_policy: Callable[..., Policy]) -> None:
    unseeded = write_policy(
        "import random\ndef score_tokens(f):\n    return f.keys[..., 0] + random.random()", name="unseeded"
    )
    with pytest.raises(NondeterminismError, match="two results"):
        check_repeatable(unseeded)
    touching = write_policy("def score_tokens(f):\n    return torch.rand(f.kv_heads, f.tokens)", name="touching")
    with pytest.raises(NondeterminismError, match="global random state"):
        check_repeatable(touching)
    reseeding = write_policy(
        "def score_tokens(f):\n    torch.manual_seed(0); return torch.rand(f.kv_heads, f.tokens)",
        name="reseeding",
    )
    before = torch.random.get_rng_state()
    assert any("global random state" in sentence for sentence in check_policy(reseeding))
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize(
    "text",
    [
        "calls = []\ndef score_tokens(f):\n    calls.append(1)\n    return f.keys[..., 0] * (-1) ** len(calls)",
        "seen = {}\ndef score_tokens(f):\n    return seen.setdefault(f.tokens, f.keys[..., 0].clone())",
        "last = [0]\ndef score_tokens(f):\n    was, last[0] = last[0], f.tokens\n"
        "    return f.keys[..., 0] * (1 if was in (0, f.tokens) else -1)",
    ],
    ids=["counts its calls", "remembers a sample by its size", "looks at the sample before"],
)
def test_state_across_calls_is_refused(text: str, write_policy: Callable[..., Policy]) -> None:
    sentences = check_policy(write_policy(text))
    assert any("keep nothing between calls" in sentence for sentence in sentences)


def test_a_memory_of_samples_is_named_a_state_leak(write_policy: Callable[..., Policy]) -> None:
    policy = write_policy(
        "seen = {}\ndef score_tokens(f):\n    return seen.setdefault(f.tokens, f.keys[..., 0].clone())"
    )
    with pytest.raises(StateLeakError, match="after another sample; keep nothing between calls"):
        check_repeatable(policy)


def test_a_layer_that_was_written_to_is_not_blamed_on_the_next_policy(
    write_policy: Callable[..., Policy],
) -> None:
    layer = synthetic_layer(10)
    layer.view().keys.zero_()
    with pytest.raises(FeatureWriteError, match="before policy mine saw it"):
        decide(write_policy(KNORM), layer, [torch.tensor([2, 2])])


def test_scores_that_overflow_only_in_their_sum_are_fine(write_policy: Callable[..., Policy]) -> None:
    policy = write_policy("def score_tokens(f):\n    return torch.full((f.kv_heads, f.tokens), 3e38)")
    mask = decide(policy, synthetic_layer(10), [torch.tensor([2, 2])])[0].mask
    assert mask[:, 8:].all()
