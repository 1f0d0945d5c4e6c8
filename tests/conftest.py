"""Fixtures for all tests: tiny random models and tokenizers, made in memory; no network, one thread."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported: no test may reach a hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from tests.families import FAMILIES, SPECIAL, VOCABULARY, model_of

if TYPE_CHECKING:  # else imported where they are used: xdist's own process reads this file and runs no test
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

# Timing differs too much between machines for a deadline to mean anything; every run sees the same examples.
settings.register_profile(
    "cachecraft", deadline=None, derandomize=True, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("cachecraft")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CORPUS = [
    "One of the special magic numbers for hidden-key is: 1234567. What are all the special magic numbers",
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
    "Some special magic numbers are hidden within the following text. Make sure to memorize it.",
    "Memorize and track the chain(s) of variable assignment hidden in the following text.",
]


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Two workers that each use every core are slower than two that use one; results are repeatable, too."""
    import torch

    torch.set_num_threads(1)


def build_tokenizer(*, chat_template: str | None = CHAT_TEMPLATE) -> PreTrainedTokenizerFast:
    """A BPE tokenizer of 200 entries over printable ASCII, which encode and decode leave as it is."""
    from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    alphabet = [chr(code) for code in range(32, 127)] + ["\n"]
    core = Tokenizer(BPE(unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[A-Za-z]+| ?[^A-Za-z\s]|\s"), behavior="isolated")
    core.decoder = decoders.Fuse()
    core.train_from_iterator(
        CORPUS,
        BpeTrainer(vocab_size=VOCABULARY, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        clean_up_tokenization_spaces=False,
    )
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerBase:
    """With a chat template."""
    return build_tokenizer()


@pytest.fixture(scope="session")
def plain_tokenizer() -> PreTrainedTokenizerBase:
    """The same without a chat template, as a base model has it."""
    return build_tokenizer(chat_template=None)


@pytest.fixture(scope="session")
def tiny_llama() -> PreTrainedModel:
    return model_of("llama")


@pytest.fixture(scope="session")
def tiny_qwen2() -> PreTrainedModel:
    return model_of("qwen2")


@pytest.fixture(scope="session", params=["llama", "qwen2"])
def tiny_model(request: pytest.FixtureRequest, tiny_llama, tiny_qwen2) -> PreTrainedModel:
    """Each family in turn."""
    return {"llama": tiny_llama, "qwen2": tiny_qwen2}[request.param]


@pytest.fixture(scope="session", params=FAMILIES)
def family_model(request: pytest.FixtureRequest) -> PreTrainedModel:
    """A model of each supported class and rotary embedding in turn; `tests.families` gives single ones."""
    return model_of(request.param)


@pytest.fixture(scope="module")
def brief_answers() -> Iterator[None]:
    """Tasks ask for 8 new tokens: a random model never ends an answer, and items without room for one are short."""
    from cachecraft.tasks import registry

    def brief(make):
        return lambda sources: tuple(replace(task, max_new_tokens=8) for task in make(sources))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "FAMILIES", {name: brief(make) for name, make in registry.FAMILIES.items()})
        yield


@pytest.fixture
def every_core() -> Iterator[None]:
    """For the tests on the real model: all cores, put back afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def tiny_on_command_line(monkeypatch: pytest.MonkeyPatch, tiny_llama, tiny_tokenizer) -> None:
    """`--model` gives the tiny model, so that only the command line is under test."""
    from cachecraft import models

    def load(spec: str, **options: object) -> models.LoadedModel:
        return models.LoadedModel(tiny_llama, tiny_tokenizer, spec, "r0", "float32", "cpu")

    monkeypatch.setattr(models, "load", load)
    monkeypatch.setenv("COLUMNS", "80")
