"""A tiny random model of every supported class and rotary embedding; nothing is read from a hub.

`build_model("gemma3")` makes one, `model_of("gemma3")` gives one that all tests share; `FAMILIES` names all of them.
Each has two query heads for each of its two key-value heads of width 16, and at least two layers.
"""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # else torch and transformers are imported with the first model: xdist's own process needs none
    import torch
    from transformers import PreTrainedModel

VOCABULARY = 200
SPECIAL = ["<unk>", "<pad>", "<|im_start|>", "<|im_end|>"]
WINDOW = 8  # of the models in which some layers have a sliding window: shorter than the tests' texts
WIDE_WINDOW = 96  # of those in which all have one: longer than the tests' texts
ORIGINAL = 32  # the length at which a longrope model changes its frequencies
FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True)
class Family:
    """What makes one: the names of its classes in transformers and the settings that are its own."""

    config: str
    model: str
    changes: dict[str, object] = field(default_factory=dict)


def _rope(kind: str, **more: object) -> dict[str, object]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **more}}


_BY_FREQUENCY = {"original_max_position_embeddings": 32, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_PARTIAL = {"partial_rotary_factor": 0.75}
_BOTH_FACTORS = {"short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5], "long_factor": [2.0, 3.0, 4.0, 5.0, 6.0, 7.0]}
_EAGER = {"attn_implementation": "eager"}  # early releases drop the soft-cap in another implementation

_FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaConfig", "LlamaForCausalLM"),
    "llama-linear": Family("LlamaConfig", "LlamaForCausalLM", _rope("linear", factor=4.0)),
    "llama-dynamic": Family("LlamaConfig", "LlamaForCausalLM", _rope("dynamic", factor=4.0)),
    "llama-yarn": Family(
        "LlamaConfig", "LlamaForCausalLM", _rope("yarn", factor=8.0, original_max_position_embeddings=512)
    ),
    "llama-llama3": Family("LlamaConfig", "LlamaForCausalLM", _rope("llama3", factor=8.0, **_BY_FREQUENCY)),
    "mistral": Family("MistralConfig", "MistralForCausalLM", {"sliding_window": None}),
    "mistral-sliding": Family("MistralConfig", "MistralForCausalLM", {"sliding_window": WIDE_WINDOW}),
    "qwen2": Family("Qwen2Config", "Qwen2ForCausalLM"),
    "qwen2-sliding": Family(
        "Qwen2Config",
        "Qwen2ForCausalLM",
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    "qwen3": Family("Qwen3Config", "Qwen3ForCausalLM"),
    "phi3": Family("Phi3Config", "Phi3ForCausalLM", _PARTIAL | _rope("default", **_PARTIAL)),
    "phi3-longrope": Family(
        "Phi3Config",
        "Phi3ForCausalLM",
        _PARTIAL
        | {"original_max_position_embeddings": ORIGINAL}
        | _rope("longrope", factor=4.0, original_max_position_embeddings=ORIGINAL, **_PARTIAL, **_BOTH_FACTORS),
    ),
    "gemma2": Family(
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {
            "sliding_window": WINDOW,
            "layer_types": [SLIDING, FULL],
            "query_pre_attn_scalar": 9,
            "attn_logit_softcapping": 4.0,
            "final_logit_softcapping": 3.0,
        }
        | _EAGER,
    ),
    "gemma3": Family(
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            "num_hidden_layers": 3,
            "sliding_window": WINDOW,
            "layer_types": [SLIDING, FULL, SLIDING],
            "query_pre_attn_scalar": 9,
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
                SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
            },
        },
    ),
}
FAMILIES = tuple(_FAMILIES)


def build_model(family: str, *, seed: int = 0, dtype: torch.dtype | None = None, **changes: object) -> PreTrainedModel:
    """A small model with 4 query heads on 2 key-value heads of width 16, in eval mode.

    The weights are wider than a fresh model's, so that attention is far from uniform and scores differ.
    """
    import torch
    import transformers

    chosen = copy.deepcopy(_FAMILIES[family])  # a config keeps the dicts it is given
    sizes: dict[str, object] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "initializer_range": 0.15,
        "bos_token_id": SPECIAL.index("<|im_start|>"),
        "eos_token_id": SPECIAL.index("<|im_end|>"),
        "pad_token_id": SPECIAL.index("<pad>"),
        "tie_word_embeddings": False,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        config = getattr(transformers, chosen.config)(**(sizes | chosen.changes | changes))
        model = getattr(transformers, chosen.model)(config)
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):  # which begin as ones or zeros: a norm that is forgotten must show
                torch.nn.init.normal_(weight, mean=float(weight.detach().mean()), std=0.3)
    return model.to(dtype or torch.float32).eval().requires_grad_(False)


@functools.cache
def model_of(family: str, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """The same model for everyone who asks; who changes it builds one of their own."""
    return build_model(family, dtype=dtype)
