"""Models and caches that CacheCraft cannot work with: refused in one sentence each, never served wrongly."""

from __future__ import annotations

import json

import pytest
import torch
from tests.families import build_model
from transformers import PreTrainedModel, StaticCache
from transformers.cache_utils import Cache, QuantizedLayer

from cachecraft.errors import FeatureError, ModelError
from cachecraft.models import load
from cachecraft.runtime import compat
from cachecraft.runtime.attention import attending
from cachecraft.runtime.context import prefill
from cachecraft.runtime.features import SequenceFeatures, observe_prefill
from cachecraft.runtime.structure import ModelStructure

IDS = [5, 6, 7, 8]


def of_another_class(**members: object) -> PreTrainedModel:
    model = build_model("llama")
    model.__class__ = type("OtherForCausalLM", (type(model),), members)
    return model


def test_an_untested_class_is_refused_unless_forced() -> None:
    model = of_another_class()
    with pytest.raises(ModelError, match=r"OtherForCausalLM are not supported yet .*Qwen3.*--force tries it"):
        ModelStructure.of(model)
    assert ModelStructure.of(model, force=True).layers == 2


def test_attention_that_cannot_be_replaced_is_refused_even_if_forced() -> None:
    model = of_another_class(_supports_attention_backend=False)
    with pytest.raises(ModelError, match="OtherForCausalLM attends in its own code, which CacheCraft cannot replace"):
        ModelStructure.of(model, force=True)


def test_an_unknown_rotary_embedding_is_refused_unless_forced() -> None:
    model = build_model("llama")
    model.config.rope_parameters["rope_type"] = "spiral"
    with pytest.raises(ModelError, match="of type 'spiral'; CacheCraft knows default, dynamic, linear, llama3"):
        ModelStructure.of(model)
    assert ModelStructure.of(model, force=True).rotary(4)[0].cos.shape == (516, 16)


def test_an_unknown_rotary_embedding_of_one_kind_of_layer_is_refused() -> None:
    model = build_model("gemma3")
    model.config.rope_parameters["sliding_attention"]["rope_type"] = "spiral"
    with pytest.raises(ModelError, match="of type 'spiral'"):
        ModelStructure.of(model)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_folder_whose_rotary_embedding_cannot_be_built_is_refused_by_name(tiny_tokenizer, tmp_path, family) -> None:
    build_model(family).save_pretrained(tmp_path)
    tiny_tokenizer.save_pretrained(tmp_path)
    config = tmp_path / "config.json"
    settings = json.loads(config.read_text())
    for rope in (settings["rope_parameters"], settings["rope_parameters"].get("full_attention", {})):
        rope |= {"rope_type": "spiral"} if "rope_type" in rope else {}
    config.write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="asks for a rotary embedding of type 'spiral', which transformers"):
        load(str(tmp_path))


def test_a_model_without_rotary_embedding_is_refused() -> None:
    model = build_model("llama")
    model.model.rotary_emb = None
    with pytest.raises(ModelError, match="has no rotary embedding"):
        ModelStructure.of(model)


def test_layers_that_attend_in_an_unknown_way_are_refused() -> None:
    model = build_model("qwen3")
    model.config.layer_types = ["full_attention", "chunked_attention"]
    with pytest.raises(ModelError, match="layers of kind chunked_attention; CacheCraft knows full_attention and"):
        ModelStructure.of(model, force=True)


def test_a_model_that_attends_in_both_directions_is_refused() -> None:
    model = build_model("gemma3", use_bidirectional_attention=True)
    with pytest.raises(ModelError, match="attend in both directions"):
        ModelStructure.of(model)


@pytest.mark.parametrize("family", ["qwen2", "gemma2"])
def test_a_layer_that_attends_otherwise_than_its_settings_say_is_noticed(family: str) -> None:
    model = build_model(family)
    structure = ModelStructure.of(model)
    attention = model.model.layers[1].self_attn
    if family == "qwen2":
        attention.sliding_window = 3
    else:
        attention.attn_logit_softcapping = 9.0
    with pytest.raises(ModelError, match=r"Layer 1 of .* attends with .* where its settings say"):
        observe_prefill(structure, IDS, lambda call: None)


class Quantized(QuantizedLayer):
    def __init__(self) -> None:
        self.is_initialized = False

    def _quantize(self, tensor: torch.Tensor, axis: int) -> torch.Tensor:
        return tensor

    def _dequantize(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor


def test_static_and_quantised_caches_are_refused(tiny_model, untouched) -> None:
    keyword = compat.cache_keyword(tiny_model.base_model)
    static = StaticCache(config=tiny_model.config, max_cache_len=16)
    quantised = Cache(layers=[Quantized(), Quantized()])
    for cache, kind in ((static, "static"), (quantised, "quantised")):
        with attending(tiny_model), pytest.raises(ModelError, match=f"A {kind} cache .* cannot be compressed"):
            tiny_model(input_ids=torch.tensor([IDS]), **{keyword: cache})
    assert untouched()
    with attending(tiny_model), pytest.raises(ModelError, match="A static cache"):
        tiny_model.generate(torch.tensor([IDS]), cache_implementation="static", max_new_tokens=3)


def test_quantised_weights_offer_no_output_projection(tiny_tokenizer) -> None:
    model = build_model("llama")
    structure = ModelStructure.of(model)
    sequence = SequenceFeatures.of(structure, tiny_tokenizer, IDS)
    arrays = [torch.zeros(heads, 4, 16) for heads in (4, 2, 2)]
    assert sequence.layer(0, *arrays, None).view().output_projection.shape == (4, 16, 64)
    packed = torch.zeros(64 * 64 // 2, 1, dtype=torch.uint8)
    model.model.layers[0].self_attn.o_proj.weight = torch.nn.Parameter(packed, requires_grad=False)
    with pytest.raises(FeatureError, match="needs output_projection, which layer 0 of this model"):
        _ = sequence.layer(0, *arrays, None).view().output_projection


@pytest.mark.parametrize("family", ["llama", "phi3", "gemma3"])
def test_a_prompt_longer_than_the_models_context_is_refused(tiny_tokenizer, family: str) -> None:
    model = build_model(family, max_position_embeddings=40)
    with pytest.raises(ModelError, match="tokens do not fit the model's context of 40; use a shorter length"):
        prefill(model, tiny_tokenizer, "The sky is blue. " * 20, ratio=0.5)
