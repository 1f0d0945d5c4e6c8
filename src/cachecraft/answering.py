"""Answers one question over a compressed text, piece by piece, and measures itself: what `cachecraft generate` runs.

With a text, the text is compressed before the question is seen and the question is read over what was kept. Without
one, the question is the whole prompt and is compressed itself, all but its last tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TextStreamer

from cachecraft.chat import frame, token_ids
from cachecraft.errors import ModelError
from cachecraft.models import LoadedModel
from cachecraft.runtime.compress import CompressedPrompt, compress
from cachecraft.runtime.context import prefill
from cachecraft.runtime.eviction import Budgeted
from cachecraft.runtime.structure import ModelStructure


@dataclass(frozen=True)
class Answered:
    """What an answer took.

    Attributes:
        text: The answer.
        tokens: Tokens of the prompt, the question's included.
        new_tokens: Tokens of the answer.
        full_bytes, kept_bytes: Keys and values of what was compressed, before and after.
        first_token_seconds: From the beginning of the prompt's reading until the first token was known.
        scoring_seconds: The part of it that the policy's features, scores and selection took.
        tokens_per_second: Of the answer's tokens after the first one; None if there is none.
        note: What of the allocation had to give way, in one sentence; "" if nothing had.
    """

    text: str
    tokens: int
    new_tokens: int
    full_bytes: int
    kept_bytes: int
    first_token_seconds: float
    scoring_seconds: float
    tokens_per_second: float | None
    note: str = ""


@dataclass
class _Clock:
    """When the prompt's reading began and each token was known."""

    began: float = field(default_factory=time.perf_counter)
    moments: list[float] = field(default_factory=list)

    def token(self, _: int = 0) -> None:
        self.moments.append(time.perf_counter())

    @property
    def first(self) -> float:
        return (self.moments[0] if self.moments else time.perf_counter()) - self.began

    @property
    def rate(self) -> float | None:
        return (len(self.moments) - 1) / (self.moments[-1] - self.moments[0]) if len(self.moments) > 1 else None


class _Streamer(TextStreamer):
    """Hands pieces of text on as `generate` makes them, and the clock each token that does not end the answer."""

    def __init__(self, loaded: LoadedModel, tell: Callable[[str], None], clock: _Clock, stop: frozenset[int]) -> None:
        super().__init__(loaded.tokenizer, skip_prompt=True, skip_special_tokens=True)
        self._tell, self._clock, self._stop = tell, clock, stop
        self._prompt_came = False

    def put(self, value: Any) -> None:
        if self._prompt_came and int(value.flatten()[-1]) not in self._stop:
            self._clock.token()
        self._prompt_came = True
        super().put(value)  # type: ignore[no-untyped-call]

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        self._tell(text)


def answer(
    loaded: LoadedModel,
    question: str,
    text: str | None,
    tell: Callable[[str], None],
    asked: Budgeted,
    *,
    max_new_tokens: int = 256,
    force: bool = False,
) -> Answered:
    """Answer a question greedily.

    Args:
        loaded: The model and its tokenizer.
        question: What is asked; on a new line after the text, if there is one.
        text: What it is asked about, or None.
        tell: Called with each piece of the answer as it comes.
        asked: The policy and how much it may keep.
        max_new_tokens: The most tokens to generate.
        force: Accept a model class that CacheCraft was not tested with.

    Raises:
        ModelError: Text, question and answer do not fit the model's context, or the model is not supported.
        PolicyError: The policy breaks the contract.
    """
    structure = ModelStructure.of(loaded.model, force=force)
    tokens = len(_prompt_ids(loaded, question if text is None else f"{text}\n{question}"))
    if tokens + max_new_tokens > structure.context:  # before minutes are spent on reading
        raise ModelError(
            f"The prompt has {tokens} tokens and the answer may take {max_new_tokens}, more than the model's context "
            f"of {structure.context}; give a shorter text or a smaller --max-new-tokens."
        )
    pieces: list[str] = []

    def told(piece: str) -> None:
        pieces.append(piece)
        tell(piece)

    clock = _Clock()
    how: dict[str, Any] = {"policy": asked.policy, "ratio": asked.ratio, "keep": asked.keep, "force": force}
    if text is None:
        streamer = _Streamer(loaded, told, clock, structure.stop_ids)
        read: Any = _whole_prompt(loaded, question, streamer, max_new_tokens, how)
    else:
        read = prefill(loaded.model, loaded.tokenizer, text, **how)
        for piece in read.stream(question, max_new_tokens=max_new_tokens, on_token=clock.token):
            told(piece)
    return Answered(
        text="".join(pieces),
        tokens=tokens,
        new_tokens=len(clock.moments),
        full_bytes=read.full_bytes,
        kept_bytes=read.bytes,
        first_token_seconds=clock.first,
        scoring_seconds=read.scoring_seconds,
        tokens_per_second=clock.rate,
        note=read.note if text is None else read.allocation_note,
    )


def _prompt_ids(loaded: LoadedModel, text: str) -> tuple[int, ...]:
    around = frame(loaded.tokenizer)
    return around.first_ids + token_ids(loaded.tokenizer, around.head + text + around.tail)


def _whole_prompt(
    loaded: LoadedModel, question: str, streamer: TextStreamer, max_new_tokens: int, how: dict[str, Any]
) -> CompressedPrompt | None:
    """Answer a prompt that is compressed itself; what became of it."""
    ids = torch.tensor([_prompt_ids(loaded, question)], device=loaded.model.device)
    with compress(loaded.model, tokenizer=loaded.tokenizer, **how) as compression:
        model: Any = loaded.model  # whose `generate` a type checker does not see
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            streamer=streamer,
            # Greedy, whatever the model's own settings are, as over a text.
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            num_beams=1,
            repetition_penalty=1.0,
        )
    return compression.last
