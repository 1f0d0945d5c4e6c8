"""What differs between model classes: which are supported, and what each layer's attention does.

Read from a model's settings and modules; what its layers really do is compared with this at every prefill (see
`cachecraft.runtime.features`). What differs between transformers releases is in `cachecraft.runtime.compat`, what
differs between rotary embeddings in `cachecraft.runtime.rope`.
"""

from __future__ import annotations

from transformers import PreTrainedModel

from cachecraft.errors import ModelError
from cachecraft.runtime import compat, rope

SUPPORTED_MODELS = (
    "Gemma2ForCausalLM",
    "Gemma3ForCausalLM",
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Phi3ForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
)
_KINDS = ("full_attention", "sliding_attention")
_NEVER_CAPPED = ("Gemma3ForCausalLM",)  # has the setting and does not use it


def require_model(model: PreTrainedModel, *, force: bool = False) -> None:
    """Refuse a model whose attention CacheCraft was not tested with.

    Args:
        model: The model about to be used.
        force: Go on with an untested class or rotary embedding; its scores may be computed on the wrong queries.

    Raises:
        ModelError: The class is not in `SUPPORTED_MODELS`, its attention cannot be replaced or is not causal, its
            layers attend in a way that CacheCraft does not know, or its rotary embedding is unknown.
    """
    compat.require_transformers()
    name = type(model).__name__
    if name not in SUPPORTED_MODELS and not force:
        raise ModelError(
            f"Models of class {name} are not supported yet (supported: {', '.join(SUPPORTED_MODELS)}); "
            "--force tries it all the same."
        )
    compat.require_replaceable_attention(model)
    config = model.config
    if getattr(config, "use_bidirectional_attention", False) or not getattr(config, "is_causal", True):
        raise ModelError(f"{name} is set to attend in both directions; only causal models have a cache to compress.")
    if unknown := sorted(set(getattr(config, "layer_types", None) or ()) - set(_KINDS)):
        raise ModelError(
            f"{name} has layers of kind {', '.join(unknown)}; CacheCraft knows {' and '.join(_KINDS)} layers only."
        )
    if not force:
        rope.require_known(model)


def windows(model: PreTrainedModel) -> tuple[int | None, ...]:
    """For each layer how many entries a token sees, itself included; None for all before it."""
    layers = len(compat.decoder_layers(model))
    config = model.config
    window: int | None = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or [_KINDS[window is not None]] * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds[:layers])


def softcap(model: PreTrainedModel) -> float | None:
    """What scaled attention logits are soft-capped at, or None."""
    if type(model).__name__ in _NEVER_CAPPED:
        return None
    cap: float | None = getattr(model.config, "attn_logit_softcapping", None)
    return cap


def special_attention(model: PreTrainedModel) -> list[object]:
    """The settings by which attention differs from plain causal attention, for a fingerprint; empty if none does."""
    shown, others = windows(model), [softcap(model), getattr(model.config, "query_pre_attn_scalar", None)]
    return [shown, *others] if any(shown) or any(others) else []
