"""Small offline tokenizers: with and without BOS, with and without a chat template."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.tasks.question_data import write_data
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from cachecraft.tasks import Sources, Task, load_tasks

CHAT_TEMPLATE = (
    "<s>{% for message in messages %}<|{{ message['role'] }}|>\n"
    "{{ message['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
PROSE = [
    "One of the special magic numbers for quiet-river is: 1234567. What is the special magic number for it?",
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",
    "Memorize and track the chain(s) of variable assignment hidden in the following text. VAR ABCDE = 12345",
]


def build_tokenizer(*, bos: bool, chat: str | None) -> PreTrainedTokenizerFast:
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(PROSE, trainer)
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, bos_token="<s>", eos_token="</s>")
    tokenizer.chat_template = chat
    return tokenizer


@pytest.fixture(scope="session")
def plain() -> PreTrainedTokenizerFast:
    """No chat template, nothing added."""
    return build_tokenizer(bos=False, chat=None)


@pytest.fixture(scope="session")
def with_bos() -> PreTrainedTokenizerFast:
    """No chat template; BOS first and EOS last by default."""
    return build_tokenizer(bos=True, chat=None)


@pytest.fixture(scope="session")
def chatty() -> PreTrainedTokenizerFast:
    """A chat template that writes BOS itself; the tokenizer would add another."""
    return build_tokenizer(bos=True, chat=CHAT_TEMPLATE)


@pytest.fixture(scope="session")
def with_template() -> Callable[[str], PreTrainedTokenizerFast]:
    """Makes a tokenizer with any chat template."""
    return lambda template: build_tokenizer(bos=True, chat=template)


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with small data of our own for qa_1 and qa_2."""
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="session")
def tasks(data: Path) -> dict[str, Task]:
    """RULER's tasks by name, with data for those that need some."""
    return {task.name: task for task in load_tasks(["ruler"], sources=Sources(data=(str(data),)))}


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared data, where a checkout has one."""
    folder = Path(os.environ.get("CACHECRAFT_SHARED") or Path(__file__).parents[2] / "../shared/data")
    if not folder.is_dir():
        pytest.skip(f"the shared data folder {folder} is absent; CACHECRAFT_SHARED names another")
    return folder
