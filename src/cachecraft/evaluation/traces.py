"""A trace: what one dense prefill computed, kept so that every policy and budget can be measured on it.

Eviction after a dense prefill changes nothing before it, so the post-RoPE queries, the keys and the values of each
layer are all that any single-pass policy needs. `TraceStore` keeps traces in memory up to a limit and memory-mapped
files beyond it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from cachecraft.errors import RunError
from cachecraft.policy.features import LayerFeatures
from cachecraft.runtime.attention import LayerCall
from cachecraft.runtime.features import SequenceFeatures, observe_prefill
from cachecraft.runtime.gather import in_window
from cachecraft.runtime.structure import ModelStructure


@dataclass(frozen=True, eq=False)
class TracedLayer:
    """One layer's tensors: queries (H, T, D), keys and values (G, T, D), logsumexp (H, T) float32 or None.

    Of a layer with a sliding window, which no policy decides on: no queries, (H, 0, D), and of keys and values what
    the window still shows to the next token.
    """

    queries: Tensor
    keys: Tensor
    values: Tensor
    logsumexp: Tensor | None

    def to(self, device: torch.device) -> TracedLayer:
        """The same on a device."""
        logsumexp = None if self.logsumexp is None else self.logsumexp.to(device)
        return TracedLayer(self.queries.to(device), self.keys.to(device), self.values.to(device), logsumexp)


@dataclass(frozen=True, eq=False)
class Trace:
    """A recorded prefill of the tokens `ids`."""

    ids: tuple[int, ...]
    layers: tuple[TracedLayer, ...]

    @property
    def tokens(self) -> int:
        """Number of entries, T."""
        return len(self.ids)

    @property
    def bytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())

    @property
    def full_bytes(self) -> int:
        """Bytes of keys and values that the whole cache takes, sliding windows included."""
        return sum(t.numel() * t.element_size() for layer in self.layers for t in (layer.keys, layer.values))

    @property
    def bytes_per_entry(self) -> int:
        """Bytes of keys and values that one entry takes in all layers and heads together."""
        layer = self.layers[0]
        width = layer.keys.shape[-1] * layer.keys.element_size() + layer.values.shape[-1] * layer.values.element_size()
        return width * int(layer.keys.shape[0]) * len(self.layers)

    def everything(self) -> list[Tensor]:
        """The selection that keeps every entry: for each layer (G, T) bool, or what its sliding window shows."""
        return [torch.ones(layer.keys.shape[:2], dtype=torch.bool) for layer in self.layers]

    def on(self, structure: ModelStructure) -> Trace:
        """The same trace with each layer where the model computes it; copied if it is elsewhere, as from a file."""
        return Trace(self.ids, tuple(layer.to(structure.device(i)) for i, layer in enumerate(self.layers)))

    def without_queries(self) -> Trace:
        """The same trace once every policy has decided: what is left is what answers need."""
        return Trace(self.ids, tuple(replace(layer, queries=layer.queries[:, :0].clone()) for layer in self.layers))

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, as stored on disk."""
        named: dict[str, Tensor] = {}
        for index, layer in enumerate(self.layers):
            named |= {f"{index}.queries": layer.queries, f"{index}.keys": layer.keys, f"{index}.values": layer.values}
            if layer.logsumexp is not None:
                named[f"{index}.logsumexp"] = layer.logsumexp
        return named


def record(structure: ModelStructure, ids: Sequence[int]) -> Trace:
    """Prefill the model with `ids` and keep what its attention saw.

    Raises:
        ModelError: The tokens do not fit the model's context.
    """
    layers: list[TracedLayer] = []

    def keep(call: LayerCall) -> None:
        window = structure.windows[call.layer]
        if window is None:
            layers.append(TracedLayer(*call.alone()))
        else:
            shown = in_window(call.keys[0], window), in_window(call.values[0], window)
            layers.append(TracedLayer(call.queries[0, :, :0].contiguous(), *shown, None))

    observe_prefill(structure, ids, keep)
    return Trace(tuple(ids), tuple(layers))


def layer_features(
    structure: ModelStructure, tokenizer: Any, trace: Trace, *, strict: bool = False
) -> Iterator[LayerFeatures]:
    """The features of each compressed layer in turn; those of a layer are released when the next one is asked for.

    Args:
        structure: The model's structure.
        tokenizer: Its tokenizer, for the masks of special tokens and punctuation.
        trace: A recorded prefill.
        strict: Compare checksums too, so that no write into the arrays goes unseen.
    """
    sequence = SequenceFeatures.of(structure, tokenizer, trace.ids)
    for index in structure.compressed:
        layer = trace.layers[index]
        features = sequence.layer(
            index, layer.queries, layer.keys, layer.values, layer.logsumexp, layers=len(trace.layers), strict=strict
        )
        yield features
        features.release()


class TraceStore:
    """Traces by key: the newest in memory up to a limit, older ones in files that are mapped, not read.

    A file is written beside its final name and renamed, so that a kill leaves no half a trace behind.
    """

    def __init__(self, folder: Path, *, memory_bytes: int = 2 << 30) -> None:
        """Keep up to `memory_bytes` of traces in memory and the rest under `folder`."""
        self._folder, self._limit = folder, memory_bytes
        self._held: OrderedDict[str, Trace] = OrderedDict()

    @property
    def held_bytes(self) -> int:
        """Bytes of the traces in memory."""
        return sum(trace.bytes for trace in self._held.values())

    def get(self, key: str) -> Trace | None:
        """The trace of `key`, or None when there is none."""
        if key in self._held:
            self._held.move_to_end(key)
            return self._held[key]
        path = self._path(key)
        return read_trace(path) if path.is_file() else None

    def put(self, key: str, trace: Trace) -> None:
        """Keep a trace; the longest unused ones move to disk when memory's limit is passed."""
        self._held[key] = trace
        while self.held_bytes > self._limit and self._held:
            oldest, moved = self._held.popitem(last=False)
            write_trace(self._path(oldest), moved)

    def drop(self, key: str) -> None:
        """Forget a trace, wherever it is."""
        self._held.pop(key, None)
        self._path(key).unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.safetensors"


def write_trace(path: Path, trace: Trace) -> None:
    """Write a trace as one safetensors file, whole or not at all.

    Raises:
        RunError: The disk is full or the folder cannot be written.
    """
    partial = path.with_suffix(f".{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        stored = {name: tensor.cpu() for name, tensor in trace.tensors().items()}
        save_file(stored, partial, metadata={"ids": json.dumps(trace.ids)})
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RunError(
            f"The trace {path} could not be written ({error.strerror or error}); free some space."
        ) from error


def read_trace(path: Path) -> Trace:
    """Map a trace written by `write_trace`, on the CPU; its tensors are read from the file as they are used."""
    with safe_open(path, framework="pt") as file:
        ids = tuple(json.loads(file.metadata()["ids"]))
        names = set(file.keys())
        layers = tuple(
            TracedLayer(
                file.get_tensor(f"{index}.queries"),
                file.get_tensor(f"{index}.keys"),
                file.get_tensor(f"{index}.values"),
                file.get_tensor(f"{index}.logsumexp") if f"{index}.logsumexp" in names else None,
            )
            for index in range(sum(name.endswith(".keys") for name in names))
        )
    return Trace(ids, layers)
