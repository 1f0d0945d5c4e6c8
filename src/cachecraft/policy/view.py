"""What a policy may see of one layer of one sequence: read-only, on demand, nothing about the question.

The arrays and the cache behind it are in features.py.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from cachecraft.errors import FeatureError
from cachecraft.policy.signals import at_least_one

if TYPE_CHECKING:
    from cachecraft.policy.features import LayerFeatures


class Features:
    """One layer of one sequence as a policy sees it; writing to what it hands out breaks the contract.

    Symbols: ``G`` kv heads, ``H`` query heads, ``T`` entries, ``D`` head width. Floating arrays are float32,
        whatever the model's dtype.
    """

    __slots__ = ("_keep", "_layer", "_protected", "_read_keep")
    _keep: Tensor | None
    _layer: LayerFeatures
    _protected: Tensor | None
    _read_keep: bool

    def __init__(self, layer: LayerFeatures, keep: Tensor | None, protected: Tensor | None) -> None:
        put = object.__setattr__
        put(self, "_layer", layer)
        put(self, "_keep", keep)
        put(self, "_protected", protected)
        put(self, "_read_keep", False)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise FeatureError(f"Features are read-only: {name} cannot be set; keep your own values in local variables.")

    @property
    def tokens(self) -> int:
        """T, the number of entries."""
        return self._layer.tokens

    @property
    def heads(self) -> int:
        """H, the number of query heads."""
        return self._layer.heads

    @property
    def kv_heads(self) -> int:
        """G, the number of kv heads."""
        return self._layer.kv_heads

    @property
    def head_dim(self) -> int:
        """D, the width of a head."""
        return self._layer.head_dim

    @property
    def layer(self) -> int:
        """Index of this layer, from 0."""
        return self._layer.layer

    @property
    def layers(self) -> int:
        """Number of layers of the model."""
        return self._layer.layers

    @property
    def scaling(self) -> float:
        """Factor of the attention logits, D ** -0.5 in most models."""
        return self._layer.scaling

    @property
    def seed(self) -> int:
        """Derived from the content; see :meth:`generator`."""
        return self._layer.seed

    @property
    def softcap(self) -> float | None:
        """What the model squashes scaled logits with, as softcap * tanh(logits / softcap); None in most models."""
        return self._layer.softcap

    @property
    def keys(self) -> Tensor:
        """(G, T, D) after the rotation."""
        return self._layer.in_float32("keys")

    @property
    def values(self) -> Tensor:
        """(G, T, D)."""
        return self._layer.in_float32("values")

    @property
    def queries(self) -> Tensor:
        """(H, T, D) after the rotation; heads of one group are neighbours."""
        return self._layer.in_float32("queries")

    @property
    def keys_unrotated(self) -> Tensor:
        """(G, T, D) before the rotation."""
        return self._layer.unrotated("keys")

    @property
    def queries_unrotated(self) -> Tensor:
        """(H, T, D) before the rotation."""
        return self._layer.unrotated("queries")

    @property
    def positions(self) -> Tensor:
        """(T,) int64 true positions of the entries."""
        return self._layer.positions()

    @property
    def output_projection(self) -> Tensor:
        """(H, D, hidden): what each query head's output is multiplied with."""
        return self._layer.in_float32("output_projection")

    @property
    def special_mask(self) -> Tensor:
        """(T,) bool: special tokens."""
        return self._layer.given("special_mask")

    @property
    def punctuation_mask(self) -> Tensor:
        """(T,) bool: punctuation tokens."""
        return self._layer.given("punctuation_mask")

    @property
    def keep(self) -> Tensor:
        """(G,) int64: the budget of each kv head. Reading it has the policy asked again for every budget."""
        return self._lend_budget("keep", self._keep)

    @property
    def protected(self) -> Tensor:
        """(G, T) bool: entries kept whatever their score. It depends on the budget, as ``keep`` does."""
        array = self._protected
        if array is None and self._keep is not None:
            shape = (self.kv_heads, self.tokens)
            array = torch.zeros(shape, dtype=torch.bool, device=self._layer.device)
        return self._lend_budget("protected", array)

    def _lend_budget(self, name: str, array: Tensor | None) -> Tensor:
        object.__setattr__(self, "_read_keep", True)
        if array is None:
            raise FeatureError(f"This policy reads {name}, but there is no budget yet; score it with one.")
        return array.clone()

    @property
    def read_keep(self) -> bool:
        """Whether the budget was read through this view."""
        return self._read_keep

    def rotate(self, x: Tensor, positions: Tensor | int) -> Tensor:
        """Rotate (..., D) vectors to positions that broadcast to their other dimensions, up to T + 512."""
        return self._layer.rotary.rotate(x, positions)

    def mean_rotation(self, count: int) -> Tensor:
        """Mean of the rotations to the ``count`` positions that follow the context, up to 512, (D, D)."""
        return self._layer.mean_rotation(at_least_one("count", count))

    def window_attention(self, w: int) -> Tensor:
        """Causal softmax of the last ``w`` queries over all entries, (G, H/G, min(w, T), T)."""
        return self._layer.window_attention(at_least_one("window", w))

    def attention_rows(self, first: int, last: int) -> Tensor:
        """Causal softmax of the queries first … last - 1 over the entries 0 … last - 1, (G, H/G, last - first, last).

        Computed anew each time and not kept: go through a long window some rows at a time.
        """
        return self._layer.attention_rows(first, last)

    def chunk_attention(self, size: int, first: int = 0, last: int = 0) -> Tensor:
        """Attention inside aligned chunks of ``size``, in both directions, (G, H/G, T - first - last).

        For each entry the sum over the queries of its chunk of the softmax of the unscaled products; the first
        chunk begins at entry ``first`` and the last ``last`` entries are left out.
        """
        skipped = (max(0, int(first)), max(0, int(last)))
        return self._layer.chunk_attention(at_least_one("chunk", size), *skipped)

    def projected_values(self) -> Tensor:
        """L1 norm of each value times the output matrix of each query head of its group, (G, H/G, T)."""
        return self._layer.projected_values()

    def attention_received(self) -> Tensor:
        """Mean attention of each entry over the queries that see it, sum_i a_ij / (T - j), (G, H/G, T)."""
        return self._layer.attention_received()

    def local_attention_received(self, span: int) -> Tensor:
        """Mean of a_ij over the queries j <= i < min(j + span, T), (G, H/G, T)."""
        return self._layer.local_attention_received(at_least_one("span", span))

    def generator(self, draw: int = 0) -> torch.Generator:
        """A CPU random generator that depends on the content, the layer and ``draw`` only."""
        digest = hashlib.blake2b(f"{self.seed}:{self.layer}:{draw}".encode(), digest_size=8).digest()
        return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)
