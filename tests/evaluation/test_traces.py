"""Traces survive the disk unchanged, and the store moves them there when memory runs short."""

from pathlib import Path

import torch
from tests.families import model_of

from cachecraft.evaluation.traces import Trace, TraceStore, record
from cachecraft.runtime.structure import ModelStructure


def recorded(*ids: int) -> Trace:
    return record(ModelStructure.of(model_of("llama")), ids)


def same(one: Trace, other: Trace) -> bool:
    ours, theirs = one.tensors(), other.tensors()
    return one.ids == other.ids and ours.keys() == theirs.keys() and all(torch.equal(ours[n], theirs[n]) for n in ours)


def test_traces_beyond_the_limit_move_to_disk_and_come_back_unchanged(tmp_path: Path) -> None:
    first, second = recorded(5, 6, 7), recorded(8, 9)
    store = TraceStore(tmp_path, memory_bytes=second.bytes)
    store.put("first", first)
    store.put("second", second)
    assert store.held_bytes <= second.bytes
    found = store.get("first"), store.get("second")
    assert found[0] is not None and same(found[0], first)
    assert found[1] is second
    assert [path.suffix for path in tmp_path.iterdir()] == [".safetensors"], "nothing half-written stays"


def test_a_dropped_trace_is_gone_from_memory_and_disk(tmp_path: Path) -> None:
    store = TraceStore(tmp_path, memory_bytes=0)
    store.put("only", recorded(5, 6))
    store.drop("only")
    assert store.get("only") is None
    assert not list(tmp_path.iterdir())
