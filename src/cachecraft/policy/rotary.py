"""Rotary position tables: apply and undo the rotation that a model gives its queries and keys.

The layout is the one of Hugging Face's Llama-like models (the two halves of the rotated channels form the
pairs). Computing a table from a model's settings belongs to the runtime.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cachecraft.errors import FeatureError


def _turned(x: Tensor) -> Tensor:
    """(a, b) -> (-b, a) for the two halves of the last dimension."""
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


@dataclass(frozen=True, eq=False)
class RotaryTable:
    """Cosines and sines of every position.

    Attributes:
        cos: (P, R) float32, the two halves equal. ``R`` may be smaller than the head width (partial rotary);
            it may
            carry a constant factor (YaRN's attention scaling).
        sin: (P, R) float32, likewise.
    """

    cos: Tensor
    sin: Tensor

    def _at(self, positions: Tensor | int) -> tuple[Tensor, Tensor]:
        index = torch.as_tensor(positions, device=self.cos.device)
        if index.numel():
            low, high = int(index.min()), int(index.max())
            if low < 0 or high >= self.cos.shape[0]:
                raise FeatureError(
                    f"Position {low if low < 0 else high} is outside the rotary table, which covers 0 to "
                    f"{self.cos.shape[0] - 1}; ask for positions inside it."
                )
        return self.cos[index], self.sin[index]

    def rotate(self, x: Tensor, positions: Tensor | int) -> Tensor:
        """Rotate vectors to their positions.

        Args:
            x: (..., D), any float dtype; the result is float32.
            positions: Integers that broadcast to ``x.shape[:-1]``.

        Raises:
            FeatureError: A position lies outside the table.
        """
        cos, sin = self._at(positions)
        width = cos.shape[-1]
        x = x.float()
        part = x[..., :width]
        turned = part * cos + _turned(part) * sin
        return turned if width == x.shape[-1] else torch.cat((turned, x[..., width:]), dim=-1)

    def unrotate(self, x: Tensor, positions: Tensor | int) -> Tensor:
        """The exact inverse of :meth:`rotate`, its factor included; same arguments and errors."""
        cos, sin = self._at(positions)
        width = cos.shape[-1]
        x = x.float()
        part = x[..., :width]
        plain = (part * cos - _turned(part) * sin) / (cos.square() + sin.square())
        return plain if width == x.shape[-1] else torch.cat((plain, x[..., width:]), dim=-1)

    def mean_matrix(self, positions: Tensor, width: int) -> Tensor:
        """The mean of the rotations to some positions, as the matrix that is multiplied from the left.

        Args:
            positions: (N,) integers.
            width: D, of the vectors that are rotated.

        Returns:
            (D, D) float32 ``M``: ``M @ x`` is the mean over the positions of ``rotate(x, position)``.

        Raises:
            FeatureError: A position lies outside the table.
        """
        cos, sin = (part.mean(dim=0) for part in self._at(positions))
        rotated = cos.shape[-1]
        basis = torch.eye(width, device=cos.device)  # rows are the unit vectors
        part = basis[:, :rotated]
        turned = torch.cat((part * cos + _turned(part) * sin, basis[:, rotated:]), dim=-1)
        return turned.t().contiguous()
