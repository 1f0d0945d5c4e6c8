"""What a model wants around a user's text: its chat template split in two, or the tokens it puts first.

The pieces of a prompt are tokenised apart, because what is compressed ends between them. This file knows neither
tasks nor models; both the tasks and the runtime build their prompts with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from cachecraft.errors import ModelError

_USER_TEXT = "CACHECRAFT-USER-TEXT"
# Put before a template that writes today's date, so that a prompt is the same every day. (A function passed as
# a setting would reach the template as text.) What follows the macro keeps the template's first newline.
_FIXED_DATE = "{% macro strftime_now(format) %}26 Jul 2024{% endmacro %}{{ '' }}"


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that prompts need; anything with these members will do."""

    @property
    def chat_template(self) -> Any:
        """The template's source, or None for a model that has none."""

    def __call__(self, text: str, *, add_special_tokens: bool, verbose: bool) -> Any:
        """Return a mapping whose ``input_ids`` is a list of token ids."""

    def apply_chat_template(
        self,
        conversation: list[dict[str, str]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        **settings: Any,
    ) -> Any:
        """Return the conversation as the model expects it (text when ``tokenize`` is false)."""


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
        ModelError: The template does not give text.
    """
    settings: dict[str, Any] = {"enable_thinking": False}
    source = tokenizer.chat_template
    if isinstance(source, str) and "strftime_now" in source:
        settings["chat_template"] = _FIXED_DATE + source
    messages = [{"role": "user", "content": user_text}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **settings)
    if not isinstance(text, str):
        raise ModelError(f"The chat template gave {type(text).__name__} instead of text; use another tokenizer.")
    return text


def frame(tokenizer: Tokenizer, *, chat: bool = True) -> Frame:
    """Find what goes before and after the user's text.

    Args:
        tokenizer: The model's tokenizer.
        chat: Use the chat template if there is one; else only the ids that the tokenizer puts first by
            default.

    Raises:
        ModelError: The chat template drops, changes or repeats the user's text.
    """
    if chat and tokenizer.chat_template:
        pieces = apply_template(tokenizer, _USER_TEXT).split(_USER_TEXT)
        if len(pieces) != 2:
            raise ModelError(
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


def token_ids(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    """Tokenise a piece of a prompt, adding nothing to it."""
    return _call(tokenizer, text, add_special_tokens=False) if text else ()


def _call(tokenizer: Tokenizer, text: str, *, add_special_tokens: bool) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=add_special_tokens, verbose=False)["input_ids"])
