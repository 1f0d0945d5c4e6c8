"""Everything works on a model that lies on another device than the CPU, and gives the same: see `pretend_device`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

import cachecraft
from cachecraft.api import evaluate, subject_of
from cachecraft.budgeting import search_budgets
from cachecraft.budgets.settings import EvolKVSettings, SearchTask
from cachecraft.evaluation.cells import Budget
from cachecraft.evolution.arena import Arena
from cachecraft.evolution.settings import DiscoverySettings
from cachecraft.models import LoadedModel
from cachecraft.policy.contract import builtin_policies
from cachecraft.tasks.registry import load_tasks
from tests.families import build_model, model_of
from tests.pretend_device import PretendedDevice

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("brief_answers")]
TOLERANCE = 1e-5
LENGTH = 330
TEXT = "The grass is green. One of the special magic numbers for hidden-key is: 1234567. Here we go. " * 2
Load = Callable[[str, str], LoadedModel]


@pytest.fixture(scope="module")
def device() -> PretendedDevice:
    return PretendedDevice()


@pytest.fixture(scope="module")
def load(device: PretendedDevice, tiny_tokenizer) -> Load:
    moved: dict[str, PreTrainedModel] = {}

    def loaded(family: str, where: str) -> LoadedModel:
        if where == "cpu":
            model = model_of(family)
        else:
            with device:
                model = moved[family] = moved.get(family) or build_model(family).to(device.name)
        return LoadedModel(model, tiny_tokenizer, "tiny", "r0", "float32", str(model.device))

    return loaded


def on_both(load: Load, family: str, run: Callable[[LoadedModel, str], Any]) -> tuple[Any, Any]:
    """What something gives on the CPU and on the device."""
    expected = run(load(family, "cpu"), "cpu")
    with PretendedDevice():
        return expected, run(load(family, "there"), "there")


def test_the_device_refuses_what_cuda_refuses(device: PretendedDevice) -> None:
    with device:
        there, here = torch.ones(3, 4).to(device.name), torch.ones(3, 4)
        index, mask, generator = torch.tensor([0]), here > 0, torch.Generator()
        for wrong in (
            lambda: there + here,
            lambda: here.add_(there),
            lambda: there.sum() + here,
            lambda: here[there.long()],
            lambda: there.index_select(0, index),
            lambda: there.gather(0, index.view(1, 1)),
            lambda: there.masked_fill(mask, 0.0),
            lambda: torch.where(mask, there, 0.0),
            lambda: torch.cat([there, here]),
            lambda: torch.equal(there, here),
            lambda: torch.rand(3, generator=generator, device=device.name),
            lambda: there.__setitem__(index, here[:1]),
        ):
            with pytest.raises(RuntimeError, match="device"):
                wrong()
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert (there + torch.tensor(1.0)).device == torch.device(device.name)
        assert there[index].tolist() == [[1.0] * 4] and there[mask].shape == (12,)
        column = there[:, 1]
        column += 1
        assert there.cpu().tolist() == [[1.0, 2.0, 1.0, 1.0]] * 3
        assert there.sum().item() == 15.0


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3"])
def test_a_context_is_read_asked_saved_and_loaded(load: Load, tmp_path: Path, family: str) -> None:
    def run(loaded: LoadedModel, name: str) -> list[Any]:
        told = []
        asked = ("keydiff", {}), ("snapkv", {"allocation": "adaptive"}), ("random", {"selector": "chunks:8"})
        for policy, more in asked:
            context = cachecraft.prefill(loaded.model, loaded.tokenizer, TEXT, policy=policy, ratio=0.5, **more)
            context.save(tmp_path / name)
            again = cachecraft.load_context(tmp_path / name, loaded.model, loaded.tokenizer)
            answer = context.ask("What is it?", max_new_tokens=4)
            assert again.ask("What is it?", max_new_tokens=4) == answer
            told.append((answer, context.bytes, context.kept.tolist()))
        return told

    cpu, there = on_both(load, family, run)
    assert cpu == there


def test_decoding_waits_for_the_device_once_a_token(load: Load) -> None:
    with PretendedDevice() as device:
        loaded = load("llama", "there")
        context = cachecraft.prefill(
            loaded.model, loaded.tokenizer, TEXT, policy="knorm", ratio=0.5, allocation="adaptive"
        )

        def waits(tokens: int) -> int:
            before = device.waits
            assert len(list(context._greedy((5, 6, 7), tokens))) == tokens
            return device.waits - before

        assert waits(6) - waits(3) == 3


@pytest.mark.parametrize(
    ("family", "policy", "allocation"),
    [("llama", "snapkv", None), ("llama", "tova", "adaptive"), ("gemma3", "h2o", "global")],
)
def test_a_padded_batch_is_generated(load: Load, family: str, policy: str, allocation: str | None) -> None:
    rows = [list(range(5, 45)), list(range(50, 75))]
    ids = torch.tensor([[1] * (40 - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (40 - len(row)) + [1] * len(row) for row in rows])

    def run(loaded: LoadedModel, _: str) -> tuple[Any, torch.Tensor]:
        model = loaded.model
        with cachecraft.compress(model, policy=policy, ratio=0.5, allocation=allocation) as compression:
            out = model.generate(
                input_ids=ids.to(model.device),
                attention_mask=mask.to(model.device),
                max_new_tokens=6,
                do_sample=False,
                eos_token_id=None,
                pad_token_id=1,
                return_dict_in_generate=True,
                output_logits=True,
            )
        logits = torch.stack([step.cpu() for step in out.logits])
        return (out.sequences.tolist(), compression.last.bytes, str(compression.last.kept)), logits

    (cpu, cpu_logits), (there, logits) = on_both(load, family, run)
    assert cpu == there
    assert torch.allclose(cpu_logits, logits, atol=TOLERANCE)


def measured(load: Load, folder: Path, family: str, **changes: Any) -> None:
    """Evaluate on both and compare every number."""

    def run(loaded: LoadedModel, name: str) -> dict[str, Any]:
        given: dict[str, Any] = {"policies": ["knorm"], "ratios": [0.5], "length": LENGTH, "samples": 1}
        given |= {"scoring": ["answer", "likelihood", "fidelity"]}
        return {each.id: each for each in evaluate(loaded, **(given | changes), run=folder / name).results}

    cpu, there = on_both(load, family, run)
    assert cpu.keys() == there.keys() and cpu
    for key, expected in cpu.items():
        found = there[key]
        assert (found.state, found.reason, found.kept_bytes) == (expected.state, expected.reason, expected.kept_bytes)
        assert found.value == pytest.approx(expected.value, abs=TOLERANCE), expected
        assert found.detail.get("answer") == expected.detail.get("answer")


def test_every_policy_is_evaluated(load: Load, tmp_path: Path) -> None:
    measured(load, tmp_path, "llama", policies=list(builtin_policies()), ratios=[0.5], keeps=[16])


def test_every_division_of_a_budget_is_evaluated(load: Load, tmp_path: Path) -> None:
    divisions = ["uniform", "pyramid", "adaptive", "global"]
    measured(load, tmp_path, "llama", policies=["knorm", "tova"], allocations=divisions, scoring=["likelihood"])


@pytest.mark.parametrize("family", ["gemma2", "gemma3"])
def test_models_with_sliding_windows_are_evaluated(load: Load, tmp_path: Path, family: str) -> None:
    measured(load, tmp_path, family, policies=["knorm", "snapkv"], regime="aware")


@pytest.mark.parametrize(
    ("fitness", "changes", "memory"),
    [("answer", {"granularity": "head"}, 0), ("answer", {"heads": "adaptive"}, 1 << 30), ("likelihood", {}, 0)],
)
def test_budgets_are_searched(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fitness: str, changes: dict[str, str], memory: int
) -> None:
    monkeypatch.setattr("cachecraft.budgeting.plot_budgets", lambda *given, **more: None)
    monkeypatch.setattr("cachecraft.budgets.items.TRACE_BYTES", memory)  # 0: every recorded item comes from its file

    def run(loaded: LoadedModel, name: str) -> list[float]:
        asked = SearchTask(Budget(keep=24), length=360, samples=1, held_out=1, fitness=fitness)
        settings = EvolKVSettings(iterations=1, population=4, **changes)
        found = search_budgets(loaded, policy="keydiff", asked=asked, settings=settings, run=tmp_path / name)
        return [value for row in found.budgets.table for value in (row.search, row.validation)]

    cpu, there = on_both(load, "llama", run)
    assert there == pytest.approx(cpu, abs=TOLERANCE)


def test_a_discoverys_items_are_recorded_and_candidates_measured_on_them(load: Load, tmp_path: Path) -> None:
    def run(loaded: LoadedModel, name: str) -> list[Any]:
        settings = DiscoverySettings(tasks=("ruler:niah_single_1",), ratios=(0.5, 0.75), length=LENGTH)
        arena = Arena(subject_of(loaded), load_tasks(settings.tasks), settings, tmp_path / name)
        (item,) = arena.items(0, 1)
        lines = arena._lines(item.shared, item.keeps)
        values = [each.mean_logprob for each in arena.likelihoods(item, lines)]
        return [item.full, *item.random, *item.anchors, *values, *arena.error(item, lines)]

    cpu, there = on_both(load, "llama", run)
    assert there == pytest.approx(cpu, abs=TOLERANCE)
