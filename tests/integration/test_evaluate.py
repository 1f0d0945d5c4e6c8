"""The evaluator on the default model: what is known about it must come out."""

from pathlib import Path

import pytest

import cachecraft

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def loaded() -> cachecraft.LoadedModel:
    return cachecraft.load_model("smollm2")


def test_the_default_model_finds_a_needle_and_a_policy_keeps_it_or_loses_it(
    loaded: cachecraft.LoadedModel, tmp_path: Path
) -> None:
    evaluation = cachecraft.evaluate(
        loaded,
        policies=["keydiff", "streaming_llm"],
        ratios=[0.5],
        tasks=["ruler:niah_single_1"],
        length=600,
        samples=2,
        scoring=["answer", "likelihood"],
        run=tmp_path / "run",
    )
    rows = {row.label: row for row in evaluation.summary("answer").rows}
    assert rows["full"].mean == 1.0
    assert rows["hindsight"].mean == 1.0
    likely = {row.label: row.mean for row in evaluation.summary("likelihood").rows}
    assert likely["full"] > -0.5
    assert likely["full"] > likely["random"]
    for result in evaluation.results:
        if result.label != "full":
            assert 0.49 < result.kept_bytes / result.full_bytes <= 0.5
