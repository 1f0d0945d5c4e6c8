"""What scorers and selectors are worth: differences against a baseline, averaged over the other side."""

import pytest

from cachecraft.errors import RunError
from cachecraft.evolution.decompose import means, worth


def scores(value: float) -> dict[str, dict[str, float]]:
    return {"task": {str(item): value + 0.01 * item for item in range(6)}}


GRID = {
    ("random", "tokens"): scores(0.0),
    ("random", "chunks:20"): scores(0.1),
    ("ours", "tokens"): scores(0.6),
    ("ours", "chunks:20"): scores(0.7),
}


def test_each_side_is_told_against_its_baseline_averaged_over_the_other() -> None:
    told = {(each.kind, each.name): each.points for each in worth(GRID, scorer="random", selector="tokens")}
    assert told["scorer", "ours"].estimate == pytest.approx(0.6)
    assert told["selector", "chunks:20"].estimate == pytest.approx(0.1)
    assert told["scorer", "ours"].low == pytest.approx(0.6)  # the items agree, so there is no doubt
    assert len(told) == 2


def test_the_mean_of_each_pair_is_its_macro_average() -> None:
    assert means(GRID)["ours", "tokens"].estimate == pytest.approx(0.625)


def test_a_pair_that_was_not_measured_is_named() -> None:
    partial = {pair: each for pair, each in GRID.items() if pair != ("ours", "chunks:20")}
    with pytest.raises(RunError, match="ours × chunks:20"):
        worth(partial, scorer="random", selector="tokens")
