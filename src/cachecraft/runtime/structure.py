"""What CacheCraft needs to know of a model beyond its tensors: heads, widths, rotary tables, output projections."""

from __future__ import annotations

from dataclasses import dataclass

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

    def device(self, layer: int) -> torch.device:
        """Where a layer computes, and so where its cache belongs."""
        return self._projection(layer).device

    def output_projection(self, layer: int) -> Tensor:
        """(H, D, hidden) view of a layer's output projection: head h adds its output times [h]."""
        return self._projection(layer).detach().t().view(self.heads, self.head_dim, self.hidden)

    def _projection(self, layer: int) -> Tensor:
        weight: Tensor = compat.decoder_layers(self.model)[layer].self_attn.o_proj.weight  # type: ignore[union-attr, assignment]
        return weight

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
