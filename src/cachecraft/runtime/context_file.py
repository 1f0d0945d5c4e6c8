"""The file of a compressed context: one safetensors file with its entries, and what it was made with.

A file is written beside its final name and renamed, so that a kill leaves no half a file behind; it is read only if
it fits the model at hand.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from cachecraft.chat import Frame
from cachecraft.errors import ModelError
from cachecraft.runtime import families
from cachecraft.runtime.cache import CompressedCache, CompressedLayer
from cachecraft.runtime.structure import ModelStructure

FORMAT = "cachecraft-context-1"  # raised when the layout of the file changes
_SAMPLED = 8  # numbers of each weight that go into a model's fingerprint


@dataclass(frozen=True)
class ContextRecord:
    """What a file says about a context beside its entries; see `CompressedContext` for the fields."""

    policy: str
    policy_id: str
    forced: bool
    frame: Frame
    gap: str
    allocation_note: str = ""


def write_context(path: Path, structure: ModelStructure, cache: CompressedCache, record: ContextRecord) -> None:
    """Write a context, whole or not at all.

    Raises:
        ModelError: The disk is full or the folder cannot be written.
    """
    lengths = cache.lengths[:, 0].contiguous()
    tensors: dict[str, Tensor] = {"lengths": lengths}
    for index, layer in enumerate(cache.compressed):
        keys, values = layer.entries()
        tensors |= {f"{index}.keys": keys.cpu(), f"{index}.values": values.cpu()}
    metadata = {
        "format": FORMAT,
        "cachecraft": _own_version(),
        "model": Path(str(structure.model.config._name_or_path)).name,
        "model_class": type(structure.model).__name__,
        "fingerprint": model_fingerprint(structure.model),
        "dtype": str(structure.model.dtype).removeprefix("torch."),
        "tokens": str(cache.compressed[0].seen),
        "kept_per_head": str(lengths.double().mean().item()),
        "policy": record.policy,
        "policy_id": record.policy_id,
        "forced": json.dumps(record.forced),
        "frame": json.dumps([record.frame.head, record.frame.tail, record.frame.first_ids]),
        "gap": record.gap,
        "allocation_note": record.allocation_note,
    }
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(tensors, partial, metadata=metadata)
        os.replace(partial, path)
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"The context {path} could not be written ({error}); check the folder and free space."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


def read_context(path: Path, structure: ModelStructure) -> tuple[CompressedCache, ContextRecord]:
    """Read a context that `write_context` wrote, onto the model's devices.

    Raises:
        ModelError: The file is missing, damaged or no context, or it belongs to another model or dtype.
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise ModelError(f"{path} is not a context that this version of CacheCraft saved; make it anew.")
            _require_same_model(path, metadata, structure)
            lengths = file.get_tensor("lengths")
            tokens = int(metadata["tokens"])
            layers = [
                CompressedLayer(
                    file.get_tensor(f"{index}.keys").to(structure.device(index)),
                    file.get_tensor(f"{index}.values").to(structure.device(index)),
                    lengths[index : index + 1],
                    tokens,
                    window=structure.windows[index],
                )
                for index in range(structure.layers)
            ]
            head, tail, first = json.loads(metadata["frame"])
            record = ContextRecord(
                metadata["policy"],
                metadata["policy_id"],
                bool(json.loads(metadata["forced"])),
                Frame(head, tail, tuple(first)),
                metadata["gap"],
                metadata.get("allocation_note", ""),  # files of before have none
            )
    except FileNotFoundError as error:
        raise ModelError(f"There is no file {path}; check its path.") from error
    except (OSError, SafetensorError, KeyError, ValueError, IndexError) as error:
        raise ModelError(f"{path} is damaged or no CacheCraft context ({error}); make the context anew.") from error
    return CompressedCache(layers), record


def _require_same_model(path: Path, metadata: dict[str, str], structure: ModelStructure) -> None:
    dtype = str(structure.model.dtype).removeprefix("torch.")
    if metadata["dtype"] != dtype:
        raise ModelError(
            f"{path} was made in {metadata['dtype']}, but the model is in {dtype}; load the model likewise."
        )
    if metadata["fingerprint"] != model_fingerprint(structure.model):
        raise ModelError(
            f"{path} was made with another model ({metadata['model_class']} {metadata['model']}) than the "
            f"{type(structure.model).__name__} given; load it with the model that it was made with."
        )


def model_fingerprint(model: PreTrainedModel) -> str:
    """SHA-256 over the class, the settings of its attention and a few numbers of every weight of a model.

    Two models of one architecture differ in it; where a model lies, its device and the transformers release do not
    count.
    """
    rotary = getattr(model.config, "rope_parameters", None)
    digest = hashlib.sha256(type(model).__name__.encode())
    digest.update(json.dumps(rotary, sort_keys=True, default=str).encode())
    if special := families.special_attention(model):
        digest.update(json.dumps(special).encode())
    for name, weight in model.named_parameters():
        flat = weight.detach().reshape(-1)
        step = max(1, flat.numel() // _SAMPLED)
        digest.update(f"{name}{tuple(weight.shape)}".encode())
        digest.update(flat[::step].to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def _own_version() -> str:
    try:
        return version("cachecraft-kv")
    except PackageNotFoundError:  # run from a source tree that was not installed
        return "0+unknown"
