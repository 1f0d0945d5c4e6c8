"""What scores and selections must satisfy: one check and one error class for each rule.

Each message says which policy broke which rule on which layer, with the value found and what to do.
Selections that break a rule are rejected, never mended.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from cachecraft.errors import PolicyError
from cachecraft.policy.features import Features


class InvariantError(PolicyError):
    """A policy broke the contract."""


class PolicyRaisedError(InvariantError):
    """The policy's own code raised an exception."""


class ProtectError(InvariantError):
    """``protect`` returned something else than two whole numbers of at least 0."""


class ScoreShapeError(InvariantError):
    """Scores are not a (G, T) tensor."""


class ScoreDtypeError(InvariantError):
    """Scores are not real floating-point numbers."""


class NonFiniteScoreError(InvariantError):
    """A score is NaN or infinite."""


class KeepMaskError(InvariantError):
    """A selection is not a (G, T) bool mask."""


class KeepCountError(InvariantError):
    """A selection keeps more or fewer entries than its budget."""


class ProtectionError(InvariantError):
    """A selection drops a protected entry."""


class AllocationError(InvariantError):
    """``allocate`` returned something else than whole numbers, in range, that sum to the total."""


class FeatureWriteError(InvariantError):
    """Something handed out to be read was written to."""


class NondeterminismError(InvariantError):
    """The same input gave two results."""


class StateLeakError(InvariantError):
    """A result depends on what the policy was asked before."""


def check_protection(protection: object, f: Features, policy: str) -> tuple[int, int]:
    """The two numbers of a ``protect`` result; ProtectError if it is anything else."""
    if isinstance(protection, tuple) and len(protection) == 2:
        first, last = protection
        if type(first) is int and type(last) is int and first >= 0 and last >= 0:
            return first, last
    raise ProtectError(
        f"Policy {policy} protects {protection!r} on layer {f.layer}; return two whole numbers of at least "
        "0, (first, last)."
    )


def check_scores(scores: object, f: Features, policy: str) -> None:
    """Scores are a finite floating-point (G, T) tensor.

    Args:
        scores: What ``score_tokens`` returned.
        f: The features it was given.
        policy: The policy's name, for the message.

    Raises:
        ScoreShapeError, ScoreDtypeError, NonFiniteScoreError: The rule that is broken.
    """
    expected = (f.kv_heads, f.tokens)
    if not isinstance(scores, Tensor):
        raise ScoreShapeError(
            f"Policy {policy} returned scores of type {type(scores).__name__} on layer {f.layer}; return a "
            f"tensor of shape {expected}, (kv heads, entries)."
        )
    if scores.shape != expected:
        raise ScoreShapeError(
            f"Policy {policy} returned scores of shape {tuple(scores.shape)} on layer {f.layer}; return "
            f"{expected}, (kv heads, entries)."
        )
    if not scores.is_floating_point():
        raise ScoreDtypeError(
            f"Policy {policy} returned scores of dtype {scores.dtype} on layer {f.layer}; return real "
            "floating-point numbers, for example with .float()."
        )
    # A sum is finite only if every term is; it may also overflow, so a bad sum alone proves nothing.
    total = scores.sum(dtype=torch.float32 if scores.dtype != torch.float64 else None)
    if not math.isfinite(total.item()):
        bad = ~scores.isfinite()
        if bool(bad.any()):
            head, token = (int(i) for i in bad.nonzero()[0])
            raise NonFiniteScoreError(
                f"Policy {policy} gave {int(bad.sum())} scores that are not finite on layer {f.layer}, the "
                f"first of them {scores[head, token].item()} at kv head {head}, entry {token}; guard "
                "divisions, logarithms and empty means."
            )


def check_selection(mask: object, keep: Tensor, f: Features, policy: str, protected: Tensor | None = None) -> None:
    """A selection keeps exactly its budget and every protected entry.

    Args:
        mask: What the selector returned.
        keep: (G,) int64, the budgets.
        f: The features of the layer.
        policy: The policy's name, for the message.
        protected: (G, T) bool, entries that must stay.

    Raises:
        KeepMaskError, KeepCountError, ProtectionError: The rule that is broken.
    """
    expected = (f.kv_heads, f.tokens)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != expected:
        found = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise KeepMaskError(
            f"Policy {policy} selected with a {found} on layer {f.layer}; return a bool mask of shape "
            f"{expected}, true where an entry stays."
        )
    counts = mask.sum(dim=-1)
    if not torch.equal(counts, keep):
        head = int((counts != keep).nonzero()[0])
        raise KeepCountError(
            f"Policy {policy} keeps {int(counts[head])} of {f.tokens} entries of kv head {head} on layer "
            f"{f.layer}, but the budget is {int(keep[head])}; keep exactly the budget of each head."
        )
    if protected is not None and bool((protected > mask).any()):
        head, token = (int(i) for i in (protected > mask).nonzero()[0])
        raise ProtectionError(
            f"Policy {policy} drops the protected entry {token} of kv head {head} on layer {f.layer}; its "
            "selector must keep every entry of f.protected."
        )


def check_unchanged(changed: list[str], layer: int, policy: str) -> None:
    """Nothing that was handed out was written to.

    Args:
        changed: Names from :meth:`LayerFeatures.changed`.
        layer: Index of the layer.
        policy: The policy's name.

    Raises:
        FeatureWriteError: Something was.
    """
    if changed:
        raise FeatureWriteError(
            f"Policy {policy} wrote into {', '.join(changed)} on layer {layer}, which are read-only; work on "
            "a copy made with .clone() and avoid operations that end in an underscore."
        )
