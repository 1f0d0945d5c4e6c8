"""Rotary embeddings as each model computes them: the tables that policies see, and how far cached keys stay valid.

A model is never asked in a way that changes it: some embeddings recompute their frequencies when they are shown a
position that is farther than any before.
"""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from cachecraft.errors import ModelError

ROPE_TYPES = ("default", "dynamic", "linear", "llama3", "longrope", "yarn")


def parameters(model: PreTrainedModel, layer: int) -> dict[str, Any]:
    """The rotary settings of a layer; they may differ between its kinds."""
    config = model.config
    settings: dict[str, Any] = getattr(config, "rope_parameters", None) or {}
    kind = _kind(model, layer)
    if kind is None:
        return settings
    own: dict[str, Any] = settings[kind]
    return own


def _kind(model: PreTrainedModel, layer: int) -> str | None:
    """The layer's kind where the rotary settings are divided by kinds, else None."""
    kinds = getattr(model.config, "layer_types", None)
    settings = getattr(model.config, "rope_parameters", None) or {}
    return str(kinds[layer]) if kinds and kinds[layer] in settings else None


def _types(model: PreTrainedModel) -> set[str]:
    layers = range(int(model.config.num_hidden_layers))
    return {str(parameters(model, layer).get("rope_type", "default")) for layer in layers}


def require_known(model: PreTrainedModel) -> None:
    """Refuse a rotary embedding that CacheCraft was not tested with.

    Raises:
        ModelError: There is none, or it is of another type than `ROPE_TYPES`.
    """
    if unknown := sorted(_types(model) - set(ROPE_TYPES)):
        raise ModelError(
            f"{type(model).__name__} has a rotary embedding of type {unknown[0]!r}; CacheCraft knows "
            f"{', '.join(ROPE_TYPES)} (--force tries it all the same)."
        )
    _embedding(model)


def context(model: PreTrainedModel) -> int:
    """The most positions that the model was made for."""
    most = int(model.config.max_position_embeddings)
    stretched = [
        int((settings.get("factor") or 1) * settings["original_max_position_embeddings"])
        for settings in (parameters(model, layer) for layer in range(int(model.config.num_hidden_layers)))
        if settings.get("rope_type") == "yarn"  # whose users add the scaling and leave the old maximum as it was
    ]
    return max(most, *stretched) if stretched else most


def switch(model: PreTrainedModel) -> int | None:
    """The length at which the model changes the frequencies of all positions, those of cached keys included."""
    lengths = [
        int(settings["original_max_position_embeddings"])
        for settings in (parameters(model, layer) for layer in range(int(model.config.num_hidden_layers)))
        if settings.get("rope_type") == "longrope"
    ]
    return min(lengths, default=None)


def is_dynamic(model: PreTrainedModel) -> bool:
    """Whether the frequencies go on changing with each token past the model's context."""
    return "dynamic" in _types(model)


def tables(model: PreTrainedModel, tokens: int, length: int, layer: int) -> tuple[Tensor, Tensor]:
    """The rotation of positions 0 … length-1 as the model computes it for a sequence of `tokens` tokens.

    Args:
        model: The model; it is left as it is.
        tokens: Tokens of the sequence, which may decide on the frequencies.
        length: Positions wanted, at least `tokens`.
        layer: The layer.

    Returns:
        cos, sin: (length, R) float32, R the rotated width, with the attention factor of the model's scaling and
        rounded as the model rounds them.
    """
    embedding = copy.deepcopy(_embedding(model))
    device = model.device
    probe = torch.zeros(1, 1, 1, device=device, dtype=model.dtype)  # in which the model rounds its tables
    kind = _kind(model, layer)
    more = () if kind is None else (kind,)
    with torch.no_grad():
        embedding(probe, torch.arange(max(1, tokens), device=device).unsqueeze(0), *more)  # sets the frequencies
        plain = inspect.unwrap(type(embedding).forward)  # without the update of the frequencies
        cos, sin = plain(embedding, probe, torch.arange(length, device=device).unsqueeze(0), *more)
    return cos[0].float(), sin[0].float()


def _embedding(model: PreTrainedModel) -> torch.nn.Module:
    embedding = getattr(model.base_model, "rotary_emb", None)
    if not isinstance(embedding, torch.nn.Module):
        raise ModelError(f"{type(model).__name__} has no rotary embedding; CacheCraft supports rotary models only.")
    return embedding
