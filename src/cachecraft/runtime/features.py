"""The dense prefill, seen layer by layer, and the features that policies get of each layer.

Evaluation records it, a compressed context evicts during it; both look at the model through this file.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cachecraft.errors import ModelError
from cachecraft.policy.features import LayerFeatures, RotaryTable
from cachecraft.runtime import compat, families
from cachecraft.runtime.attention import LayerCall, Observer, attending
from cachecraft.runtime.slices import token_slices
from cachecraft.runtime.structure import ModelStructure


@dataclass(frozen=True, eq=False)
class SequenceFeatures:
    """What the features of all layers of one sequence share.

    Attributes:
        structure: The model's structure.
        ids: The tokens, T of them.
        rotary: For each compressed layer the model's rotation, up to the last position and a margin.
        special, punctuation: (T,) bool, which tokens are special ones, which are nothing but punctuation; None where
            no tokenizer is known, and policies that need them are refused.
        positions: (T,) int64 true positions; None for 0 … T-1.
    """

    structure: ModelStructure
    ids: tuple[int, ...]
    rotary: Mapping[int, RotaryTable]
    special: Tensor | None
    punctuation: Tensor | None
    positions: Tensor | None = None

    @classmethod
    def of(
        cls, structure: ModelStructure, tokenizer: Any | None, ids: Sequence[int], positions: Tensor | None = None
    ) -> SequenceFeatures:
        """Look the tokens up once, for all layers."""
        special, punctuation = (None, None) if tokenizer is None else token_masks(tokenizer, ids)
        reach = len(ids) if positions is None else int(positions.max()) + 1
        return cls(structure, tuple(ids), structure.rotary(reach), special, punctuation, positions)

    def layer(
        self,
        index: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        logsumexp: Tensor | None,
        *,
        layers: int | None = None,
        strict: bool = False,
    ) -> LayerFeatures:
        """The features of one layer.

        Args:
            index: The layer, one of those that are compressed.
            queries: (H, T, D), post-RoPE.
            keys: (G, T, D), post-RoPE.
            values: (G, T, D).
            logsumexp: (H, T) float32 of the scaled causal logits, if known.
            layers: Number of layers to speak of, if not the model's.
            strict: Compare checksums too, so that no write into the arrays goes unseen.
        """
        device = keys.device
        rotary = self.rotary[index]
        projection = self.structure.output_projection(index)

        def here(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        return LayerFeatures(
            keys,
            values,
            queries,
            layer=index,
            layers=layers or self.structure.layers,
            rotary=RotaryTable(rotary.cos.to(device), rotary.sin.to(device)),
            output_projection=None if projection is None else projection.to(device),
            scaling=self.structure.scaling(index),
            softcap=self.structure.softcap,
            positions=here(self.positions),
            logsumexp=logsumexp,
            special_mask=here(self.special),
            punctuation_mask=here(self.punctuation),
            seed=content_seed(self.ids, index),
            strict=strict,
        )


def observe_prefill(structure: ModelStructure, ids: Sequence[int], observer: Observer) -> None:
    """Run the model over a text from its beginning, keeping nothing but what the observer keeps.

    Args:
        structure: The model's structure.
        ids: The text's tokens.
        observer: Called with each layer's `LayerCall`, in the model's order, as soon as its attention is done.

    Raises:
        ModelError: There are no tokens or more than the model's context; or the model did not show each layer once.
    """
    if not ids:
        raise ModelError("The text has no tokens; give one that is not empty.")
    structure.require_room(len(ids))
    model = structure.model
    windows = families.windows(model)
    seen: list[int] = []

    def watched(call: LayerCall) -> None:
        seen.append(call.layer)
        require_expected(structure, call.layer, (call.scaling, call.softcap, call.window), windows[call.layer])
        observer(call)

    tokens = torch.tensor([list(ids)], device=model.device)
    positions = torch.arange(len(ids), device=model.device).unsqueeze(0)
    with torch.no_grad(), attending(model, observer=watched), token_slices(model):
        compat.hidden_states(model, tokens, positions, None)
    if seen != list(range(structure.layers)):
        raise ModelError(
            f"{type(model).__name__} showed CacheCraft the attention of layers {seen} instead of each of its "
            f"{structure.layers} layers once; this model or transformers release cannot be used."
        )


def require_expected(
    structure: ModelStructure, layer: int, found: tuple[float, float | None, int | None], window: int | None
) -> None:
    """Refuse a layer that attends otherwise than its settings say.

    Args:
        structure: The model's structure.
        layer: Index of the layer.
        found: The scaling, soft-cap and window that it was called with.
        window: What `families.windows` says of it.

    Raises:
        ModelError: They differ.
    """
    expected = structure.scaling(layer), structure.softcap, window
    if found != expected:
        raise ModelError(
            f"Layer {layer} of {type(structure.model).__name__} attends with (scaling, soft-cap, window) {found} where "
            f"its settings say {expected}; this model or transformers release cannot be used."
        )


def content_seed(ids: Sequence[int], layer: int) -> int:
    """A seed that depends on the tokens and the layer only, for policies that choose at random."""
    digest = hashlib.sha256(repr((tuple(ids), layer)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def token_masks(tokenizer: Any, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Which entries are special tokens and which are nothing but punctuation, two (T,) bool tensors."""
    special = set(tokenizer.all_special_ids)
    marks = set(string.punctuation)
    punctuation = set()
    for token in sorted(set(ids)):
        text = tokenizer.decode([token]).strip()
        if text and set(text) <= marks:
            punctuation.add(token)
    return (
        torch.tensor([i in special for i in ids], dtype=torch.bool),
        torch.tensor([i in punctuation and i not in special for i in ids], dtype=torch.bool),
    )
