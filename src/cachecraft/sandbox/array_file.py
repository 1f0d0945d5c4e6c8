"""Arrays in one file that several processes map read-only, each with the strides and alignment that it had.

A description in JSON stands behind the arrays; the file is there whole or not at all. What the arrays mean is no
matter here: see `cachecraft.sandbox.shared`.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from cachecraft.sandbox.verdict import SandboxError

_MAGIC = b"cachecraft-shared-1\n"
_LENGTH = struct.Struct("<Q")  # of the JSON that stands before it; the magic follows
_ALIGNMENT = 64  # what torch's own allocator gives
_DTYPES = {
    str(dtype): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
}
# Where an array lies: offset, dtype, shape as stored, and which dimension each stored one is.
Place = list[Any]


class ArrayWriter:
    """Writes arrays one after another."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._common: dict[int, tuple[Tensor, Place]] = {}  # the arrays are held, so that no address returns

    def add(self, array: Tensor) -> Place:
        """Write an array in the order of its memory, so that reading it restores its strides."""
        strides = array.stride()
        order = sorted(range(array.dim()), key=lambda each: (-strides[each], each))
        stored = array.detach().permute(order).cpu().contiguous()
        self._file.write(b"\0" * (-self._file.tell() % _ALIGNMENT))
        place: Place = [self._file.tell(), str(array.dtype), list(stored.shape), order]
        self._file.write(stored.view(-1).view(torch.uint8).numpy().data)
        return place

    def add_common(self, array: Tensor) -> Place:
        """Write an array that layers have in common only once."""
        held, place = self._common.get(array.data_ptr(), (None, None))
        if held is None or place is None or not torch.equal(held, array):
            place = self.add(array)
            self._common[array.data_ptr()] = array, place
        return place

    def finish(self, description: Mapping[str, Any]) -> None:
        """Write what the arrays are, behind them."""
        text = json.dumps(description).encode()
        self._file.write(text + _LENGTH.pack(len(text)) + _MAGIC)


@contextmanager
def written_whole(path: Path) -> Iterator[ArrayWriter]:
    """A file that is there whole at the end, or not at all."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            yield ArrayWriter(file)
        os.replace(partial, path)
    except OSError as error:
        raise SandboxError(
            f"The arrays {path} could not be written ({error.strerror or error}); free some space."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


class MappedArrays:
    """A file's arrays, mapped read-only: a write into one ends the process."""

    def __init__(self, descriptor: int, name: str) -> None:
        try:
            self._memory = mmap.mmap(descriptor, 0, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
            end = len(self._memory) - len(_MAGIC) - _LENGTH.size
            (length,) = _LENGTH.unpack_from(self._memory, end)
            if self._memory[end + _LENGTH.size :] != _MAGIC or length > end:
                raise ValueError("another format")
            self.description: dict[str, Any] = json.loads(self._memory[end - length : end])
        except (OSError, ValueError, struct.error) as error:
            raise SandboxError(f"The arrays {name} cannot be read ({error}); share the item again.") from error

    def array(self, place: Place) -> Tensor:
        """The array at a place, with the strides that it had."""
        offset, dtype, shape, order = place
        count = int(torch.Size(shape).numel())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the memory cannot be written to is the point
            flat = torch.frombuffer(self._memory, dtype=_DTYPES[dtype], count=count, offset=offset)
        back = sorted(range(len(order)), key=lambda each: order[each])
        return flat.view(shape).permute(back)


@contextmanager
def path_descriptor(path: Path) -> Iterator[int]:
    """A file opened for reading only, as a number."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SandboxError(f"The arrays {path} cannot be read ({error.strerror}); share the item again.") from error
    try:
        yield descriptor
    finally:
        os.close(descriptor)
