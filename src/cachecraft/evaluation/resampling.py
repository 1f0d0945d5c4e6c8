"""The arithmetic of bootstrap, permutation test and score interval, on plain arrays.

Vectorised: a table of 120 cells of 180 items takes about a second. What is paired with what, and which method
suits which scores, is decided in `cachecraft.evaluation.statistics`.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

Floats = NDArray[np.float64]

RESAMPLES = 2000
PERMUTATIONS = 9999  # so that the smallest p, 1e-4, survives a correction for some hundred comparisons


def resampled_means(sums: Floats, sizes: Floats, rng: np.random.Generator) -> Floats:
    """Sum of the means of K tasks when the U units that they share are drawn with replacement.

    Args:
        sums: (U, K) of the values of each unit.
        sizes: (U, K) how many items a unit has.
        rng: Draws the units.

    Returns:
        (RESAMPLES,). A task none of whose items was drawn has its own mean.
    """
    drawn = rng.integers(0, len(sums), size=(RESAMPLES, len(sums)), dtype=np.int32)
    if (sizes == sizes[0, 0]).all():  # nearly always: every item stands for itself
        return np.asarray(sums.sum(axis=1)[drawn].mean(axis=1) / sizes[0, 0])
    top, below = sums[drawn].sum(axis=1), sizes[drawn].sum(axis=1)
    means = np.where(below > 0, top / np.maximum(below, 1), sums.sum(axis=0) / sizes.sum(axis=0))
    return np.asarray(means.sum(axis=1))


def bootstrap_mean(values: Floats, confidence: float, seed: int) -> tuple[float, float, str]:
    """Limits for the mean, by BCa or, where that is undefined (all values equal, say), by percentiles."""
    if np.ptp(values) == 0:
        return float(values[0]), float(values[0]), "percentile bootstrap"
    low = high = math.nan
    method = "BCa"
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # scipy warns where BCa is undefined; the limits are then nan
            rng = np.random.default_rng(seed)
            low, high = stats.bootstrap(
                (values,), np.mean, n_resamples=RESAMPLES, confidence_level=confidence, method=method, rng=rng
            ).confidence_interval
        if math.isfinite(low) and math.isfinite(high):
            break
    return float(low), float(high), f"{method} bootstrap"


def sign_flip_p(shares: Floats, seed: int, permutations: int = PERMUTATIONS) -> float:
    """Two-sided p of a sum of differences: how often random signs give a sum at least as far from zero."""
    padded = np.zeros(-(-len(shares) // 8) * 8)
    padded[: len(shares)] = shares
    # One random byte holds eight signs: what its set bits add up to is looked up, not multiplied out.
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1)  # (256, 8)
    drawn = np.random.default_rng(seed).integers(0, 256, (len(padded) // 8, permutations), dtype=np.uint8)
    flipped = np.zeros(permutations)
    for group, row in zip(padded.reshape(-1, 8), drawn, strict=True):
        flipped += (bits @ group)[row]
    total = float(shares.sum())
    # Sums that are equal on paper differ in their last digits: count them as equal.
    beyond = np.abs(total - 2 * flipped) >= abs(total) - 1e-9 * float(np.abs(shares).sum())
    return (1 + int(beyond.sum())) / (1 + permutations)


def percentiles(draws: Floats, confidence: float) -> tuple[float, float]:
    """The middle `confidence` of the draws."""
    low, high = np.quantile(draws, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def wilson(mean: float, n: float, confidence: float) -> tuple[float, float]:
    """Score interval for a proportion (Wilson, 1927); `n` need not be a whole number."""
    z2 = float(stats.norm.ppf((1 + confidence) / 2)) ** 2 / n
    middle, half = mean + z2 / 2, math.sqrt(z2 * mean * (1 - mean) + z2**2 / 4)
    low = 0.0 if mean <= 0 else (middle - half) / (1 + z2)
    return low, 1.0 if mean >= 1 else (middle + half) / (1 + z2)


def tango_interval(wins: float, losses: float, n: float, confidence: float) -> tuple[float, float]:
    """Score interval for a difference of paired proportions (Tango, Statistics in Medicine 17, 1998).

    Args:
        wins: Items right on the first side only.
        losses: Items right on the second side only.
        n: All items; none of the three need be a whole number.
        confidence: Of the two-sided interval.
    """
    z = float(stats.norm.ppf((1 + confidence) / 2))

    def score(delta: float) -> float:
        # q: the most likely probability of a loss if the difference were delta
        first = (2 * n - wins + losses) * delta - wins - losses
        q = (math.sqrt(max(first**2 + 8 * n * losses * delta * (1 - delta), 0.0)) - first) / (4 * n)
        variance = n * (2 * q + delta * (1 - delta))
        gap = wins - losses - n * delta
        return gap / math.sqrt(variance) if variance > 1e-15 else math.copysign(math.inf, gap) if gap else 0.0

    mean, edge = (wins - losses) / n, 1 - 1e-12
    bounded = {sign: (lambda d, s=sign: max(min(score(d), 1e6), -1e6) - s * z) for sign in (1, -1)}
    low = -1.0 if mean <= -edge else float(optimize.brentq(bounded[1], -edge, mean))
    high = 1.0 if mean >= edge else float(optimize.brentq(bounded[-1], mean, edge))
    return low, high
