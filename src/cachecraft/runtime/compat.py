"""What differs between transformers releases, in one place.

Everything else in CacheCraft calls the functions here and never asks for a version. A release outside
`SUPPORTED_TRANSFORMERS` is refused, since a changed internal would otherwise go on "working" on the wrong tensors.
What differs between model classes is in `cachecraft.runtime.families`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
import transformers
from packaging.version import Version
from torch import Tensor
from transformers import AttentionInterface, GenerationConfig, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import StaticLayer
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from cachecraft.errors import ModelError
from cachecraft.policy.softcap import soft_capped

SUPPORTED_TRANSFORMERS = ("5.2", "5.25")  # from, up to but not including
VOCABULARY_PART = 2048  # rows of the output layer multiplied at a time where only the best token is wanted
FEW_QUERIES = 8  # up to this many a row, plain products are faster on a CPU than the fused kernel's blocks

AttentionFunction = Callable[..., tuple[Tensor, Tensor | None]]


def require_transformers() -> None:
    """Refuse a transformers release that this version of CacheCraft was not tested with.

    Raises:
        ModelError: The installed release is outside `SUPPORTED_TRANSFORMERS`.
    """
    low, high = SUPPORTED_TRANSFORMERS
    if not Version(low) <= Version(transformers.__version__) < Version(high):
        raise ModelError(
            f"transformers {transformers.__version__} is not supported; "
            f"install one from {low} up to, but not including, {high}."
        )


def require_replaceable_attention(model: PreTrainedModel) -> None:
    """Refuse a model that does not ask the registry of attention functions for its own.

    Raises:
        ModelError: The model's code attends by itself.
    """
    if not getattr(model, "_supports_attention_backend", False):
        raise ModelError(
            f"{type(model).__name__} attends in its own code, which CacheCraft cannot replace; "
            "use a model class that supports transformers' attention interface."
        )


def require_growing_cache(cache: Any) -> None:
    """Refuse a cache whose entries are not plain tensors that grow by appending.

    Raises:
        ModelError: The cache has a fixed size or quantised entries.
    """
    for layer in getattr(cache, "layers", ()):
        quantised = any("Quantized" in base.__name__ for base in type(layer).__mro__)
        if quantised or isinstance(layer, StaticLayer):
            raise ModelError(
                f"A {'quantised' if quantised else 'static'} cache ({type(cache).__name__}) cannot be compressed; "
                "leave the cache to CacheCraft or use a dynamic one."
            )


def require_buildable_rotary(config: PreTrainedConfig) -> None:
    """Refuse settings whose rotary embedding the installed transformers cannot build, before it tries.

    Raises:
        ModelError: The type of a rotary embedding is unknown.
    """
    settings = getattr(config, "rope_parameters", None) or {}
    # Either one embedding's settings, or those of several kinds of layers by name.
    each = [part for part in settings.values() if isinstance(part, dict)] or [settings]
    types = {str(part.get("rope_type", "default")) for part in each}
    if unknown := sorted(types - {"default", *ROPE_INIT_FUNCTIONS}):
        raise ModelError(
            f"The model's config.json asks for a rotary embedding of type {unknown[0]!r}, which transformers "
            f"{transformers.__version__} does not know; correct the file or install a release that does."
        )


def register_attention(name: str, function: AttentionFunction) -> None:
    """Make `function` available to every model under the attention name `name` (idempotent).

    No mask function is registered under the name, so that transformers builds no mask and the function is alone
    responsible for causality.
    """
    AttentionInterface.register(name, function)


def cache_keyword(model: torch.nn.Module) -> str:
    """The name under which this release passes the cache to `forward`: ``cache``, or ``past_key_values`` before."""
    parameters = inspect.signature(type(model).forward).parameters
    for name in ("cache", "past_key_values"):
        if name in parameters:
            return name
    raise ModelError(f"{type(model).__name__}.forward takes no cache; it cannot be compressed.")


def undecodable(model: PreTrainedModel, config: GenerationConfig | None, settings: dict[str, Any]) -> str:
    """What of a `generate` call does not work on a cache whose entries were evicted, in words; "" if all of it does.

    Args:
        model: The model that is to generate.
        config: The `generation_config` of the call, if there is one.
        settings: Its keyword arguments.
    """
    merged = copy.deepcopy(model.generation_config or GenerationConfig())
    for given in (config.to_dict() if config is not None else {}, settings):
        merged.update(**{key: value for key, value in given.items() if value is not None})
    mode = str(merged.get_generation_mode(settings.get("assistant_model")).value)
    if mode not in ("greedy_search", "sample"):
        return mode.replace("_", " ")
    implementation = merged.cache_implementation
    if implementation not in (None, "dynamic", "hybrid"):  # the last is an old default that transformers drops itself
        return f"cache_implementation={implementation!r}"
    if merged.use_cache is False:
        return "use_cache=False"
    if getattr(merged, "prefill_chunk_size", None) is not None:
        return "prefill_chunk_size, which reads a prompt in pieces"
    return ""


def hidden_states(model: PreTrainedModel, ids: Tensor, positions: Tensor, cache: Any | None) -> Tensor:
    """Run the decoder without its output layer.

    Args:
        model: A causal language model.
        ids: (B, N) int64 token ids.
        positions: (B, N) or (1, N) int64 true positions.
        cache: The cache that the new tokens attend to and join, or None.

    Returns:
        (B, N, hidden) final hidden states, after the last norm.
    """
    inner = model.base_model
    arguments: dict[str, Any] = {"input_ids": ids, "position_ids": positions, "use_cache": cache is not None}
    if cache is not None:
        arguments[cache_keyword(inner)] = cache
    if "cache_position" in inspect.signature(type(inner).forward).parameters:
        arguments["cache_position"] = positions[0]
    result: Tensor = inner(**arguments).last_hidden_state
    return result


def logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Next-token logits, (..., vocabulary) float32, of final hidden states (..., hidden)."""
    result: Tensor = model.get_output_embeddings()(hidden)
    result = result.float()
    cap = getattr(model.config, "final_logit_softcapping", None)
    return result if cap is None else torch.tanh(result / cap) * cap


def best_tokens(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """The most likely next token, (M,) int64, of final hidden states (M, hidden); of equals the lowest id.

    On a CPU the vocabulary is passed over in parts that stay in its cache: few rows times a large vocabulary is
    limited by memory, and the logits themselves are not needed, nor is a soft-cap, which changes no order.
    """
    head = model.get_output_embeddings()
    if type(head) is not torch.nn.Linear or head.bias is not None or hidden.device.type != "cpu":
        return logits(model, hidden).argmax(dim=-1)
    best, chosen = (hidden @ head.weight[:VOCABULARY_PART].t()).max(dim=-1)
    for first in range(VOCABULARY_PART, head.weight.shape[0], VOCABULARY_PART):
        high, where = (hidden @ head.weight[first : first + VOCABULARY_PART].t()).max(dim=-1)
        chosen = torch.where(high > best, where + first, chosen)
        best = torch.maximum(high, best)
    return chosen


def decoder_layers(model: PreTrainedModel) -> torch.nn.ModuleList:
    """The decoder layers, in order; each has a `self_attn` with `o_proj`."""
    layers = getattr(model.base_model, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ModelError(f"{type(model).__name__} keeps its decoder layers where CacheCraft does not look for them.")
    return layers


def attention_with_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    mask: Tensor | None = None,
    *,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of which parts can be joined afterwards, since it comes with the log-sum-exp of its logits.

    Args:
        query: (B, H, N, D).
        key: (B, H, S, D).
        value: (B, H, S, D).
        scaling: Factor of the dot products.
        mask: Additive, broadcastable to (B, H, N, S), or None.
        softcap: Limit of the scaled logits, which no fused kernel knows.

    Returns:
        (B, H, N, D) output and (B, H, N) float32 log-sum-exp of the scaled, capped and masked logits.
    """
    kernel = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    if kernel is not None and query.device.type == "cpu" and query.shape[2] > FEW_QUERIES and softcap is None:
        output, logsumexp = kernel(query, key, value, 0.0, False, attn_mask=mask, scale=scaling)
        return output, logsumexp
    logits = soft_capped((query.float() @ key.float().transpose(-1, -2)).mul_(scaling), softcap)
    if mask is not None:
        logits += mask
    logsumexp = logits.logsumexp(dim=-1)
    weights = logits.sub_(logsumexp.unsqueeze(-1)).exp_()
    return (weights @ value.float()).to(query.dtype), logsumexp


def fused_causal_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> tuple[Tensor, Tensor | None]:
    """Causal attention of a whole sequence over itself, and the log-sum-exp of its logits where the kernel gives it.

    Args:
        query: (B, H, T, D).
        key: (B, G, T, D), G a divisor of H.
        value: (B, G, T, D).
        scaling: Factor of the dot products.

    Returns:
        (B, H, T, D) output and (B, H, T) float32 log-sum-exp of the scaled, masked logits, or None.
    """
    kernel = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
    if kernel is not None and query.device.type == "cpu":
        output, logsumexp = kernel(query, key, value, 0.0, True, scale=scaling)
        return output, logsumexp
    output = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output, None
