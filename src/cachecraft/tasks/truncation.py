"""Cuts a context that is too long, by the rules of benchmarks: out of the middle of the prompt, or off its start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from cachecraft.chat import frame, token_ids
from cachecraft.tasks.prompt import render
from cachecraft.tasks.task import Item

_TRIES = 8


@dataclass(frozen=True)
class Cut:
    """A context and how many tokens were taken out of it."""

    context: str
    removed: int = 0


def cut_to_fit(item: Item, tokenizer: Any, rule: Literal["middle", "start"]) -> Cut | None:
    """Take as few tokens out of a context as its length asks for.

    ``middle`` keeps the first and the last half of the prompt's tokens, question and answer prefix counted with the
    last half, as LongBench does; ``start`` keeps the last ones. The chat template is put around what is left.

    Args:
        item: Too long for its length.
        tokenizer: The model's tokenizer; it must be able to decode.
        rule: Where to cut.

    Returns:
        None if even the question leaves no room for a part of the context on each side that is kept.
    """
    around = frame(tokenizer, chat=item.chat)
    ids = token_ids(tokenizer, item.context)
    whole = len(render(tokenizer, item, around).ids)
    room = len(ids) - (whole + item.max_new_tokens - item.length)  # tokens of the context that may stay
    behind = len(token_ids(tokenizer, item.question)) + len(token_ids(tokenizer, item.answer_prefix))
    for _ in range(_TRIES):
        first = (room + behind) // 2 if rule == "middle" else 0
        last = room - first
        if last < 1 or (rule == "middle" and first < 1):
            return None
        context = _text(tokenizer, ids[:first]).rstrip("\ufffd") + _text(tokenizer, ids[-last:]).lstrip("\ufffd")
        over = len(render(tokenizer, replace(item, context=context, segments=()), around).ids)
        over += item.max_new_tokens - item.length
        if over <= 0:
            return Cut(context, len(ids) - room)
        room -= over  # the seam was tokenised into more tokens than the two sides had
    return None


def _text(tokenizer: Any, ids: tuple[int, ...]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)) if ids else ""
