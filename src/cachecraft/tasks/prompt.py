"""From an item to token ids: the chat template is split around the user's text, each piece tokenised alone.

The pieces stay apart because the regimes compress different ones: the context (with the template's head) is
always compressible, the question only in the query-aware regime, the template's tail and the answer prefix
never. This file neither makes items nor decides how long they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cachecraft.errors import TaskError
from cachecraft.tasks.task import Item, Tokenizer

_USER_TEXT = "CACHECRAFT-USER-TEXT"
# Put before a template that writes today's date, so that an item is the same every day. (A function passed as
# a setting would reach the template as text.) What follows the macro keeps the template's first newline.
_FIXED_DATE = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}{{ '' }}"


@dataclass(frozen=True)
class Prompt:
    """Token ids of one item, in the order in which the model reads them.

    Attributes:
        context_ids: The template's head or the BOS token, then the context.
        question_ids: The question.
        tail_ids: The template's tail and the answer prefix.
    """

    context_ids: tuple[int, ...]
    question_ids: tuple[int, ...]
    tail_ids: tuple[int, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        """The whole prompt."""
        return self.context_ids + self.question_ids + self.tail_ids


@dataclass(frozen=True)
class Frame:
    """What a model wants around the user's text.

    Attributes:
        head: Text before it; "" without a chat template.
        tail: Text after it, before the answer; "" without a chat template.
        first_ids: Ids put before everything (BOS) when there is no template to write them.
    """

    head: str
    tail: str
    first_ids: tuple[int, ...]


def apply_template(tokenizer: Tokenizer, user_text: str) -> str:
    """Write a user's message as the model's chat template wants it, ready for the answer.

    Thinking is switched off where a template knows the setting (an answer prefix follows, so there is no room
    for it), and templates that write the date get a fixed one.

    Args:
        tokenizer: A tokenizer that has a chat template.
        user_text: The message.

    Raises:
        TaskError: The template does not give text.
    """
    settings: dict[str, Any] = {"enable_thinking": False}
    source = tokenizer.chat_template
    if isinstance(source, str) and "strftime_now" in source:
        settings["chat_template"] = _FIXED_DATE + source
    messages = [{"role": "user", "content": user_text}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **settings)
    if not isinstance(text, str):
        raise TaskError(f"The chat template gave {type(text).__name__} instead of text; use another tokenizer.")
    return text


def frame(tokenizer: Tokenizer, *, chat: bool = True) -> Frame:
    """Find what goes before and after the user's text.

    Args:
        tokenizer: The model's tokenizer.
        chat: Use the chat template if there is one; else only the ids that the tokenizer puts first by
            default.

    Raises:
        TaskError: The chat template drops, changes or repeats the user's text.
    """
    if chat and tokenizer.chat_template:
        pieces = apply_template(tokenizer, _USER_TEXT).split(_USER_TEXT)
        if len(pieces) != 2:
            raise TaskError(
                f"The chat template holds the user's text {len(pieces) - 1} times instead of once, so the "
                "prompt cannot be split around it; use a tokenizer with another template or with none."
            )
        return Frame(pieces[0], pieces[1], ())
    plain = token_ids(tokenizer, _USER_TEXT)
    whole = _call(tokenizer, _USER_TEXT, add_special_tokens=True)
    # Only what comes first is wanted: a tokenizer may also add an end-of-sequence token, which would end the
    # prompt.
    start = next((i for i in range(len(whole)) if whole[i : i + len(plain)] == plain), 0)
    return Frame("", "", whole[:start])


def render(tokenizer: Tokenizer, item: Item, around: Frame | None = None) -> Prompt:
    """Tokenise an item.

    Args:
        tokenizer: The model's tokenizer.
        item: The item.
        around: `frame` of this tokenizer, if the caller has it already.

    Raises:
        TaskError: The chat template cannot be split around the user's text.
    """
    around = around or frame(tokenizer, chat=item.chat)
    return Prompt(
        around.first_ids + token_ids(tokenizer, around.head + item.context),
        token_ids(tokenizer, item.question),
        token_ids(tokenizer, around.tail + item.answer_prefix),
    )


def token_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Tokenise a piece of a prompt, adding nothing to it."""
    return _call(tokenizer, text, add_special_tokens=False) if text else ()


def _call(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])
