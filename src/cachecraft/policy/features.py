"""The features of one layer of one sequence: lazy, cached, watched for writes and bounded in memory.

``LayerFeatures`` holds the arrays and computes each heavy feature once for all policies of a sample; what a
policy receives of it is ``Features``, in view.py. Neither runs a model nor knows what is asked about the
context.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch
from torch import Tensor

from cachecraft.errors import FeatureError
from cachecraft.policy.attention import local_received_attention, received_attention, window_attention
from cachecraft.policy.rotary import RotaryTable
from cachecraft.policy.softcap import capped_received, capped_rows
from cachecraft.policy.view import Features

__all__ = ["Features", "LayerFeatures", "RotaryTable"]


def _checksum(tensor: Tensor) -> int:
    flat = tensor.detach().cpu().contiguous().view(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0


class LayerFeatures:
    """The arrays of one layer and the features derived from them, shared by all policies of a sample."""

    def __init__(
        self,
        keys: Tensor,
        values: Tensor,
        queries: Tensor,
        *,
        layer: int,
        layers: int,
        rotary: RotaryTable | None = None,
        output_projection: Tensor | None = None,
        positions: Tensor | None = None,
        scaling: float | None = None,
        softcap: float | None = None,
        logsumexp: Tensor | None = None,
        special_mask: Tensor | None = None,
        punctuation_mask: Tensor | None = None,
        seed: int = 0,
        strict: bool = False,
    ) -> None:
        """Hold the arrays; nothing is computed yet and nothing is copied.

        Args:
            keys: (G, T, D), after the rotation.
            values: (G, T, D).
            queries: (H, T, D), after the rotation; H is a multiple of G.
            layer: Index of the layer, from 0.
            layers: Number of layers of the model.
            rotary: The model's rotation, for the unrotated features.
            output_projection: (H, D, hidden), the part of the output matrix that each query head feeds.
            positions: (T,) int64 true positions; 0 … T-1 by default.
            scaling: Factor of the attention logits; D ** -0.5 by default.
            softcap: Limit of the scaled logits, for models that soft-cap them.
            logsumexp: (H, T) float32, log-sum-exp of the scaled, capped causal logits; computed when first
                needed if absent.
            special_mask: (T,) bool, which tokens are special ones.
            punctuation_mask: (T,) bool, which tokens are punctuation.
            seed: Derived from the content, for random choices.
            strict: Also compare the bits of what was handed out, which finds writes that PyTorch does not
                count.
                Always done for inference tensors, which have no version counter.

        Raises:
            FeatureError: The shapes do not fit together.
        """
        if keys.dim() != 3 or values.shape[:2] != keys.shape[:2] or queries.shape[1:] != keys.shape[1:]:
            raise FeatureError(
                f"Keys {tuple(keys.shape)}, values {tuple(values.shape)} and queries {tuple(queries.shape)} "
                "do not describe one layer; give (G, T, D), (G, T, D) and (H, T, D)."
            )
        self.kv_heads, self.tokens, self.head_dim = keys.shape
        self.heads = queries.shape[0]
        if self.tokens < 1 or self.heads % self.kv_heads:
            raise FeatureError(
                f"A layer of {self.heads} query heads, {self.kv_heads} kv heads and {self.tokens} entries "
                "cannot be scored; there must be an entry and a whole number of query heads per kv head."
            )
        self.layer, self.layers, self.seed = layer, layers, seed
        self.scaling = self.head_dim**-0.5 if scaling is None else scaling
        self.softcap = softcap
        self.device = keys.device
        self._rotary = rotary
        self._strict = strict
        self._cache: dict[str, Tensor] = {}
        self._seals: list[tuple[str, Tensor, int | None, int | None]] = []
        given = {
            "keys": keys,
            "values": values,
            "queries": queries,
            "output_projection": output_projection,
            "positions": positions,
            "logsumexp": logsumexp,
            "special_mask": special_mask,
            "punctuation_mask": punctuation_mask,
            "rotary.cos": rotary.cos if rotary else None,
            "rotary.sin": rotary.sin if rotary else None,
        }
        self._given = {name: array.detach() for name, array in given.items() if array is not None}
        for name, array in self._given.items():
            self._seal(name, array)

    def _seal(self, name: str, array: Tensor) -> None:
        counted = not array.is_inference()
        version = array._version if counted else None
        self._seals.append((name, array, version, _checksum(array) if self._strict or not counted else None))

    def changed(self) -> list[str]:
        """Names of the arrays that were written to since they were first held or handed out."""
        names = [
            name
            for name, array, version, checksum in self._seals
            if (version is not None and array._version != version)
            or (checksum is not None and _checksum(array) != checksum)
        ]
        return list(dict.fromkeys(names))

    def release(self) -> None:
        """Drop what was computed; it is computed again when needed."""
        self._cache.clear()
        given = {id(array) for array in self._given.values()}
        self._seals = [seal for seal in self._seals if id(seal[1]) in given]

    def view(self, keep: Tensor | None = None, protected: Tensor | None = None) -> Features:
        """What a policy receives.

        Args:
            keep: (G,) int64, entries to keep per kv head, if there is a budget.
            protected: (G, T) bool, the entries kept whatever their score; none by default.
        """
        return Features(self, keep, protected)

    def given(self, name: str) -> Tensor:
        """An array as it was given, in its own dtype; FeatureError if it was not."""
        array = self._given.get(name)
        if array is None:
            raise FeatureError(
                f"This policy needs {name}, which layer {self.layer} of this model or trace does not offer; "
                "use another policy."
            )
        return array.detach()

    def cached(self, name: str, build: Callable[[], Tensor]) -> Tensor:
        """A derived array, built on first need; an alias each time, so that its shape cannot be changed."""
        array = self._cache.get(name)
        if array is None:
            with torch.no_grad():
                array = build()
            self._cache[name] = array
            self._seal(name, array)
        return array.detach()

    def in_float32(self, name: str) -> Tensor:
        """A given array in float32; itself if it is that already."""
        array = self._given.get(name)
        if array is not None and array.dtype == torch.float32:
            return array.detach()
        return self.cached(name, lambda: self.given(name).float())

    @property
    def rotary(self) -> RotaryTable:
        """The rotation; FeatureError if the model or trace has none."""
        if self._rotary is None:
            raise FeatureError(
                f"This policy needs the rotary embedding, which layer {self.layer} of this model or trace "
                "does not offer; use another policy."
            )
        return self._rotary

    def positions(self) -> Tensor:
        """(T,) int64 true positions."""
        if "positions" in self._given:
            return self.given("positions")
        return self.cached("positions", lambda: torch.arange(self.tokens, device=self.device))

    def unrotated(self, name: str) -> Tensor:
        """Keys or queries as they were before the rotation, float32."""
        table = self.rotary
        return self.cached(f"{name}_unrotated", lambda: table.unrotate(self.given(name), self.positions()).contiguous())

    def window_attention(self, window: int) -> Tensor:
        """(G, H/G, min(w, T), T): see :meth:`Features.window_attention`."""
        window = min(window, self.tokens)
        return self.cached(
            f"window_attention({window})",
            lambda: self._last_rows(self.given("queries")[:, self.tokens - window :], self.in_float32("keys")),
        )

    def _last_rows(self, queries: Tensor, keys: Tensor) -> Tensor:
        if self.softcap is not None:
            return capped_rows(queries, keys, self.scaling, self.softcap)
        return window_attention(queries, keys, self.scaling)

    def _receive(self) -> None:
        """One pass over the lower triangle: the received mass and, if not known, the normalisers."""
        given = self.given("queries"), self.in_float32("keys"), self.scaling
        norms = self._given.get("logsumexp")
        if self.softcap is not None:
            sums, norms = capped_received(*given, self.softcap, norms)
        else:
            sums, norms = received_attention(*given, norms)
        sums /= torch.arange(self.tokens, 0, -1, device=self.device)
        self.cached("attention_received", lambda: sums)
        if "logsumexp" not in self._given:
            self.cached("logsumexp", lambda: norms)

    def attention_received(self) -> Tensor:
        """(G, H/G, T): see :meth:`Features.attention_received`."""
        if "attention_received" not in self._cache:
            self._receive()
        return self._cache["attention_received"].detach()

    def local_attention_received(self, span: int) -> Tensor:
        """(G, H/G, T): see :meth:`Features.local_attention_received`."""
        # The same pass makes the normalisers whichever feature is asked first: no order changes a bit.
        if "logsumexp" not in self._given and "logsumexp" not in self._cache:
            self._receive()
        norms = self._given.get("logsumexp", self._cache.get("logsumexp"))
        assert norms is not None
        span = min(span, self.tokens)
        return self.cached(f"local_attention_received({span})", lambda: self._receive_locally(norms.float(), span))

    def _receive_locally(self, norms: Tensor, span: int) -> Tensor:
        given = self.given("queries"), self.in_float32("keys"), self.scaling
        if self.softcap is None:
            return local_received_attention(*given, norms, span)
        sums, _ = capped_received(*given, self.softcap, norms, span)
        return sums / torch.arange(self.tokens, 0, -1, device=self.device).clamp(max=span)
