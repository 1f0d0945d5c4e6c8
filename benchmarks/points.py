"""Log-likelihoods as points, so that they read as shares."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from cachecraft.evaluation.store import Result


def in_points(results: Iterable[Result]) -> list[Result]:
    """The likelihood results as points: 100 × exp of the mean log-probability."""
    return [
        replace(each, value=None if each.value is None else 100 * math.exp(each.value))
        for each in results
        if each.scoring == "likelihood"
    ]
