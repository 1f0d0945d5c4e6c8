"""What CacheCraft needs to know of a model beyond its tensors: heads, windows, rotary tables, output projections."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.policy.features import RotaryTable
from cachecraft.runtime import compat, families, rope

ROTARY_MARGIN = 512  # positions beyond the context that policies may rotate to


@dataclass(frozen=True, eq=False)
class ModelStructure:
    """The shape of a model's attention.

    Attributes:
        layers, heads, kv_heads, head_dim, hidden: Counts and widths.
        context: The most positions that the model was made for; where every layer has a sliding window, the window.
        windows: For each layer how many entries a token sees, itself included, or None for all before it.
        softcap: What scaled attention logits are soft-capped at, or None.
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
    windows: tuple[int | None, ...]
    softcap: float | None
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
        families.require_model(model, force=force)
        config = model.config
        context = rope.context(model)
        windows = tuple(w if w is not None and w < context else None for w in families.windows(model))
        if windows and None not in windows:
            # Nothing is out of any window's sight in a text that fits the smallest: there, all layers see everything.
            context, windows = min(w for w in windows if w is not None), (None,) * len(windows)
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
            context=context,
            windows=windows,
            softcap=families.softcap(model),
            stop_ids=frozenset(stop if isinstance(stop, list) else [] if stop is None else [stop]),
        )

    @property
    def compressed(self) -> tuple[int, ...]:
        """The layers that policies decide on: those that attend to the whole text."""
        return tuple(layer for layer, window in enumerate(self.windows) if window is None)

    @property
    def note(self) -> str:
        """What is not compressed, in one sentence; empty if all layers are."""
        if len(self.compressed) == self.layers:
            return ""
        sizes = sorted({window for window in self.windows if window is not None})
        return (
            f"{len(self.compressed)} of {self.layers} layers are compressed; the others attend to the last "
            f"{' or '.join(map(str, sizes))} tokens only and stay as they are (their bytes are counted on both sides)."
        )

    def rotary(self, length: int) -> dict[int, RotaryTable]:
        """The rotary tables of a text of `length` entries and the `ROTARY_MARGIN` positions after it, by layer.

        Only of the layers that are compressed; layers whose settings are equal share one.
        """
        tables: dict[str, RotaryTable] = {}
        found = {}
        for layer in self.compressed:
            settings = repr(rope.parameters(self.model, layer))
            if settings not in tables:
                tables[settings] = RotaryTable(*rope.tables(self.model, length, length + ROTARY_MARGIN, layer))
            found[layer] = tables[settings]
        return found

    def device(self, layer: int) -> torch.device:
        """Where a layer computes, and so where its cache belongs."""
        return self._projection(layer).device

    def output_projection(self, layer: int) -> Tensor | None:
        """(H, D, hidden) view of a layer's output projection: head h adds its output times [h].

        None where the weights are stored in another form, as quantised ones are.
        """
        weight = self._projection(layer).detach()
        if not weight.is_floating_point() or weight.shape != (self.hidden, self.heads * self.head_dim):
            return None
        return weight.t().view(self.heads, self.head_dim, self.hidden)

    def _projection(self, layer: int) -> Tensor:
        weight: Tensor = compat.decoder_layers(self.model)[layer].self_attn.o_proj.weight  # type: ignore[union-attr, assignment]
        return weight

    def scaling(self, layer: int) -> float:
        """The factor of a layer's dot products."""
        return float(getattr(compat.decoder_layers(self.model)[layer].self_attn, "scaling", self.head_dim**-0.5))

    def require_room(self, tokens: int, *, read: int | None = None) -> None:
        """Refuse a sequence that is longer than what the model can handle with cached keys.

        Args:
            tokens: All tokens, those to be generated included.
            read: How many of them are in the cache before the others come, if any.

        Raises:
            ModelError: `tokens` exceeds the model's positions, or the model would rotate the tokens after the `read`
                ones otherwise than those.
        """
        if tokens > self.context:
            reason = ""
            if rope.is_dynamic(self.model):
                reason = " (beyond it, its dynamic rotary scaling would no longer fit the keys that are cached)"
            elif self.context in families.windows(self.model):
                reason = " (the sliding window of all its layers, beyond which it forgets by itself)"
            raise ModelError(
                f"{tokens} tokens do not fit the model's context of {self.context}{reason}; use a shorter length."
            )
        switch = rope.switch(self.model)
        if switch is not None and read is not None and read <= switch < tokens:
            raise ModelError(
                f"The model rotates keys otherwise in texts of more than {switch} tokens: {read} tokens cannot be kept "
                f"for a question and answer that reach {tokens}; read more, or ask for less."
            )
