"""What the arguments of a forward call say of its new tokens: which they are, where they stand, what is padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cachecraft.errors import ModelError


@dataclass(frozen=True, eq=False)
class NewTokens:
    """The tokens of one forward pass.

    Attributes:
        ids: (B, N) int64.
        positions: (B, N) int64 true positions; those of padding mean nothing.
        pads: For each row how many of the cache's columns, these included, are padding; all of it is on the left.
    """

    ids: Tensor
    positions: Tensor
    pads: tuple[int, ...]

    @classmethod
    def of(cls, call: dict[str, Any], seen: int, before: tuple[int, ...] | None) -> NewTokens:
        """Read a call's arguments.

        Args:
            call: `input_ids`, and where given `attention_mask` and `position_ids`.
            seen: Columns that the cache has seen, padding included.
            before: Padding of each row in the cache; None for an empty one.

        Raises:
            ModelError: There are no token ids, as many rows as the cache has, positions or a mask that fits.
        """
        ids = call.get("input_ids")
        if ids is None:
            raise ModelError("Embeddings without token ids cannot be compressed; give input_ids.")
        rows, columns = ids.shape
        if before is not None and len(before) != rows:
            raise ModelError(f"The cache holds {len(before)} rows, but {rows} came; give as many as it holds.")
        mask = call.get("attention_mask")
        pads = before or (0,) * rows if mask is None else left_padding(mask, (rows, seen + columns))
        if before is not None and pads != before:
            raise ModelError(
                f"The attention_mask says that {list(pads)} columns of the rows are padding, but in the cache they are "
                f"{list(before)}; give the mask of the whole conversation."
            )
        positions = call.get("position_ids")
        if positions is None:
            shift = torch.tensor(pads, device=ids.device).unsqueeze(1)
            positions = (torch.arange(seen, seen + columns, device=ids.device) - shift).clamp(min=0)
        if positions.dim() != 2 or positions.shape[1] != columns:
            raise ModelError(f"position_ids of shape {tuple(positions.shape)} do not fit {rows} × {columns} tokens.")
        return cls(ids, positions.expand(rows, columns), pads)


def left_padding(mask: Any, shape: tuple[int, int]) -> tuple[int, ...]:
    """How many columns of each row an attention mask hides.

    Args:
        mask: (B, S) of 0 and 1.
        shape: B and S as they should be.

    Raises:
        ModelError: The mask has another shape, padding elsewhere than on the left, or nothing but padding in a row.
    """
    if not isinstance(mask, Tensor) or tuple(mask.shape) != shape:
        found = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ModelError(f"An attention_mask of {found} cannot be used; give one of {shape} with 0 for padding.")
    real = mask != 0
    pads: list[int] = (~real).sum(dim=1).tolist()
    first = torch.tensor(pads, device=mask.device).unsqueeze(1)
    if not torch.equal(real, torch.arange(shape[1], device=mask.device) >= first):
        raise ModelError(
            "Padding on the right or between tokens cannot be compressed; pad on the left (padding_side='left')."
        )
    if max(pads) >= shape[1]:
        raise ModelError(f"Row {pads.index(max(pads))} is nothing but padding; leave it out of the batch.")
    return tuple(pads)
