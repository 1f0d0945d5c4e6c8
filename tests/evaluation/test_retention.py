"""What is kept of each segment: computed from masks, recorded with results, shown by name."""

from __future__ import annotations

import io
import json
import re
import sqlite3
from pathlib import Path

import pytest
import torch
from rich.console import Console

from cachecraft import api
from cachecraft.errors import RunError, UnknownNameError
from cachecraft.evaluation.measure import split_prompt
from cachecraft.evaluation.retention import compressed_segments, retention
from cachecraft.models import LoadedModel
from cachecraft.reporting.retention import print_retention
from cachecraft.tasks import load_tasks, render

pytestmark = pytest.mark.usefixtures("brief_answers")


@pytest.fixture
def loaded(tiny_llama, tiny_tokenizer) -> LoadedModel:
    return LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "r0", "float32", "cpu")


def item_of(tokenizer):
    (task,) = load_tasks(["ruler:niah_single_1"])
    return task.item(0, split="test", length=700, seed=0, tokenizer=tokenizer)


def test_every_compressed_token_is_in_a_segment_and_the_rest_in_no_other(tiny_tokenizer) -> None:
    item = item_of(tiny_tokenizer)
    prompt = render(tiny_tokenizer, item)
    for regime in ("agnostic", "aware"):
        context, _ = split_prompt(prompt, regime)
        segments = compressed_segments(tiny_tokenizer, item, prompt, len(context))
        assert {"template", "needle", "answer", "rest"} <= segments.keys()
        assert ("question" in segments) == (regime == "aware")
        places = [set(own.tolist()) for own in segments.values()]
        assert set().union(*places) == set(range(len(context)))
        rest = set(segments.pop("rest").tolist())
        assert not rest & set().union(*(set(own.tolist()) for own in segments.values()))


def test_shares_are_averages_over_layers_and_heads_and_survival_is_by_layer() -> None:
    segments = {"needle": torch.tensor([1, 2]), "rest": torch.tensor([0, 3, 4])}
    one = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 1, 0, 1]]).bool()  # each needle token by one head
    two = torch.tensor([[0, 1, 1, 0, 0], [1, 1, 0, 0, 0]]).bool()  # the first head keeps the whole needle
    found = retention([one, two], segments)
    assert found["segments"] == {"needle": {"tokens": 2, "kept": 0.625}, "rest": {"tokens": 3, "kept": 0.25}}
    assert found["survived"] == {"needle": True}
    assert found["whole"] == {"needle": 0.25}
    two[0, 2] = False
    assert retention([one, two], segments)["survived"] == {"needle": False}
    assert retention([one], {"rest": torch.arange(5)})["survived"] == {}


def shown(folder: Path, policy: str, task: str = "niah_single_1") -> str:
    text = io.StringIO()
    print_retention(Console(file=text, width=100), folder, policy=policy, task=task)
    return text.getvalue()


def test_a_run_says_what_was_kept_of_each_segment(loaded: LoadedModel, tmp_path: Path) -> None:
    evaluation = api.evaluate(
        loaded,
        policies=["streaming_llm"],
        ratios=[0.5, 0.9],
        tasks=["ruler:niah_single_1"],
        length=360,
        samples=2,
        scoring=["answer", "likelihood"],
        run=tmp_path / "run",
    )
    for result in evaluation.results:
        kept = result.detail["retention"]["segments"]
        whole = sum(each["kept"] * each["tokens"] for name, each in kept.items() if name != "answer")
        overlap = max(1.0, sum(e["tokens"] for n, e in kept.items() if n != "answer") - result.tokens)
        assert abs(whole - result.tokens * result.kept_bytes / result.full_bytes) <= overlap + 0.1
        assert len(json.dumps(result.detail["retention"])) < 500
    full = shown(tmp_path / "run", "full")
    assert "needle" in full and "1.00" in full and "0." not in full
    ours = shown(tmp_path / "run", "streaming_llm")
    assert "2 items" in ours
    lines = {cells[0]: cells for line in ours.splitlines() if len(cells := re.split(r"\s{2,}", line.strip())) > 2}
    assert float(lines["template"][1]) > 0.5  # the sinks are the template's
    assert float(lines["items whose needle survived"][2]) <= float(lines["items whose needle survived"][1])
    with pytest.raises(UnknownNameError, match="row in this run"):
        shown(tmp_path / "run", "nobody")


def test_a_run_from_before_says_that_it_does_not_know(loaded: LoadedModel, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    options = {"policies": ["knorm"], "ratios": [0.5], "tasks": ["ruler:niah_single_1"], "length": 360}
    api.evaluate(loaded, **options, samples=1, references=[], run=folder)
    with sqlite3.connect(folder / "run.sqlite") as connection:
        connection.execute("UPDATE results SET detail = json_remove(detail, '$.retention')")
    connection.close()
    with pytest.raises(RunError, match="measured before this was recorded"):
        shown(folder, "knorm")
    api.evaluate(loaded, **options, samples=2, references=[], run=folder)
    assert "1 items" in shown(folder, "knorm") and "1 more items were measured before" in shown(folder, "knorm")
