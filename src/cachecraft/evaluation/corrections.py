"""Adjusts p-values for how many comparisons were made."""

from __future__ import annotations

from collections.abc import Sequence

from scipy import stats

from cachecraft.errors import RunError


def benjamini_hochberg(pvalues: Sequence[float]) -> list[float]:
    """Adjust p-values so that few among the claims are false (Benjamini and Hochberg, 1995), in the order given.

    Raises:
        RunError: A value is not a probability.
    """
    _check(pvalues)
    return [float(p) for p in stats.false_discovery_control(pvalues)] if len(pvalues) else []


def holm(pvalues: Sequence[float]) -> list[float]:
    """Adjust p-values so that among all comparisons even one false claim is unlikely (Holm, 1979), in the order given.

    Raises:
        RunError: A value is not a probability.
    """
    _check(pvalues)
    adjusted = [0.0] * len(pvalues)
    largest = 0.0
    for rank, place in enumerate(sorted(range(len(pvalues)), key=lambda each: pvalues[each])):
        largest = max(largest, min(1.0, (len(pvalues) - rank) * pvalues[place]))
        adjusted[place] = largest
    return adjusted


def _check(pvalues: Sequence[float]) -> None:
    if any(not 0 <= p <= 1 for p in pvalues):
        raise RunError(f"p-values lie between 0 and 1; got {[p for p in pvalues if not 0 <= p <= 1][:3]}.")
