"""Which tokens of a rendered prompt belong to which segment of its item: the template's head, a needle, an instruction.

Characters become tokens through the tokenizer's own offsets. A tokenizer that gives none (a slow one) is asked to
tokenise the text up to a boundary instead, and to the next places before and after it until a token ends there.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

from cachecraft.chat import Frame, Tokenizer, frame, token_ids
from cachecraft.tasks.task import Item

TEMPLATE = "template"  # what the model's chat template or tokenizer puts before the item's own text


def token_spans(tokenizer: Tokenizer, item: Item, around: Frame | None = None) -> dict[str, tuple[int, ...]]:
    """Find the tokens of each segment of an item's context.

    A token that a boundary cuts belongs to both sides, and segments may lie inside others.

    Args:
        tokenizer: The model's tokenizer.
        item: The item.
        around: `frame` of this tokenizer, if the caller has it already.

    Returns:
        For each name (`TEMPLATE` and those of the item's segments) the places of its tokens in the `context_ids` that
        `cachecraft.tasks.prompt.render` gives, ascending; names without a token are left out.

    Raises:
        ModelError: The chat template cannot be split around the user's text.
    """
    around = around or frame(tokenizer, chat=item.chat)
    first, shift = len(around.first_ids), len(around.head)
    tokens_in = _finder(tokenizer, around.head + item.context)
    places: dict[str, set[int]] = {TEMPLATE: set(range(first)) | {first + place for place in tokens_in(0, shift)}}
    for segment in item.segments:
        found = tokens_in(segment.start + shift, segment.end + shift)
        places.setdefault(segment.name, set()).update(first + place for place in found)
    return {name: tuple(sorted(own)) for name, own in places.items() if own}


def _finder(tokenizer: Any, text: str) -> Callable[[int, int], range]:
    """A function that gives the tokens touching the characters from one place up to another."""
    if getattr(tokenizer, "is_fast", False):
        encoded = tokenizer(text, add_special_tokens=False, verbose=False, return_offsets_mapping=True)
        starts, ends = ([pair[side] for pair in encoded["offset_mapping"]] for side in (0, 1))
        return lambda start, end: (
            range(bisect_right(ends, start), bisect_left(starts, end)) if end > start else range(0)
        )
    whole = token_ids(tokenizer, text)

    def tokens_up_to(end: int) -> int | None:
        """How many tokens end exactly there; None where a token goes on beyond."""
        part = token_ids(tokenizer, text[:end])
        return len(part) if part == whole[: len(part)] else None

    def tokens_in(start: int, end: int) -> range:
        if end <= start:
            return range(0)
        before = (tokens_up_to(place) for place in range(start, -1, -1))
        after = (tokens_up_to(place) for place in range(min(end, len(text)), len(text) + 1))
        return range(*(next(count for count in counts if count is not None) for counts in (before, after)))

    return tokens_in
