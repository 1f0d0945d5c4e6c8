"""What CacheCraft needs to know of a model beyond its tensors: heads, widths, rotary tables, output projections."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.policy.features import RotaryTable
from cachecraft.runtime import compat

ROTARY_MARGIN = 512  # positions beyond the context that policies may rotate to


@dataclass(frozen=True, eq=False)
class ModelStructure:
    """The shape of a model's attention.

    Attributes:
        layers, heads, kv_heads, head_dim, hidden: Counts and widths.
        context: The most positions that the model was made for.
        stop_ids: Token ids that end an answer.
        parameters: Weights of one forward pass, without embedding look-up: what a token's arithmetic is made of.
    """

    model: PreTrainedModel
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    hidden: int
    context: int
    stop_ids: frozenset[int]

    @classmethod
    def of(cls, model: PreTrainedModel, *, force: bool = False) -> ModelStructure:
        """Read the structure of a supported model.

        Args:
            model: A causal language model.
            force: Accept a class that CacheCraft was not tested with.

        Raises:
            ModelError: The class or the transformers release is not supported.
        """
        compat.require_model(model, force=force)
        config = model.config
        heads = int(config.num_attention_heads)
        stop = model.generation_config.eos_token_id if model.generation_config is not None else None
        if stop is None:
            stop = config.eos_token_id
        return cls(
            model=model,
            layers=len(compat.decoder_layers(model)),
            heads=heads,
            kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
            hidden=int(config.hidden_size),
            context=int(config.max_position_embeddings),
            stop_ids=frozenset(stop if isinstance(stop, list) else [] if stop is None else [stop]),
        )

    def rotary(self, length: int) -> RotaryTable:
        """The rotary tables of a context of `length` entries and the `ROTARY_MARGIN` positions after it."""
        return RotaryTable(*compat.rotary_tables(self.model, length + ROTARY_MARGIN))

    def output_projection(self, layer: int) -> Tensor:
        """(H, D, hidden) view of a layer's output projection: head h adds its output times [h]."""
        weight: Tensor = compat.decoder_layers(self.model)[layer].self_attn.o_proj.weight  # type: ignore[union-attr, assignment]
        return weight.detach().t().view(self.heads, self.head_dim, self.hidden)

    def scaling(self, layer: int) -> float:
        """The factor of a layer's dot products."""
        return float(getattr(compat.decoder_layers(self.model)[layer].self_attn, "scaling", self.head_dim**-0.5))

    def require_room(self, tokens: int) -> None:
        """Refuse a sequence that is longer than the model's context.

        Raises:
            ModelError: `tokens` exceeds the model's positions.
        """
        if tokens > self.context:
            raise ModelError(f"{tokens} tokens do not fit the model's context of {self.context}; use a shorter length.")


def content_seed(ids: Sequence[int], layer: int) -> int:
    """A seed that depends on the tokens and the layer only, for policies that choose at random."""
    digest = hashlib.sha256(repr((tuple(ids), layer)).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def token_masks(tokenizer: Any, ids: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Which entries are special tokens and which are nothing but punctuation, two (T,) bool tensors."""
    special = set(tokenizer.all_special_ids)
    unique = sorted(set(ids))
    marks = set(string.punctuation)
    punctuation = set()
    for token in unique:
        text = tokenizer.decode([token]).strip()
        if text and set(text) <= marks:
            punctuation.add(token)
    return (
        torch.tensor([i in special for i in ids], dtype=torch.bool),
        torch.tensor([i in punctuation and i not in special for i in ids], dtype=torch.bool),
    )
