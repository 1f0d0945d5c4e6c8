"""From an item to token ids: each piece tokenised alone, with what the model wants around them (see chat.py).

The pieces stay apart because the regimes compress different ones: the context (with the template's head) is
always compressible, the question only in the query-aware regime, the template's tail and the answer prefix
never. This file neither makes items nor decides how long they are.
"""

from __future__ import annotations

from dataclasses import dataclass

from cachecraft.chat import Frame, Tokenizer, frame, token_ids
from cachecraft.tasks.task import Item


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


def render(tokenizer: Tokenizer, item: Item, around: Frame | None = None) -> Prompt:
    """Tokenise an item.

    Args:
        tokenizer: The model's tokenizer.
        item: The item.
        around: `frame` of this tokenizer, if the caller has it already.

    Raises:
        ModelError: The chat template cannot be split around the user's text.
    """
    around = around or frame(tokenizer, chat=item.chat)
    return Prompt(
        around.first_ids + token_ids(tokenizer, around.head + item.context),
        token_ids(tokenizer, item.question),
        token_ids(tokenizer, around.tail + item.answer_prefix),
    )
