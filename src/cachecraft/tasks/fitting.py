"""How much haystack fits: the largest whole number of units whose prompt and answer stay within a length.

Tokenising a long context is what making an item costs, so the search guesses by proportion and, near the
goal, by tokenising only the units in between. The answer rests on whole tokenisations alone; the bracket they
give shrinks at every step, so that the search always ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cachecraft.chat import Tokenizer, frame, token_ids
from cachecraft.errors import TaskError
from cachecraft.tasks.prompt import render
from cachecraft.tasks.task import Item

_UNITS_PER_TOKEN = 16  # no tokenizer merges that many words or lines into one token
_GUESSES = 12
_FULL = 7 / 8  # share of its length that an item fills at least; what is shorter is not of that length


def fit_item(
    draft: Callable[[int], Item],
    tokenizer: Tokenizer,
    *,
    least: int = 1,
    most: int | None = None,
    between: Callable[[int, int], str] | None = None,
) -> Item:
    """Make the longest item that fits its own target length.

    Args:
        draft: Makes the item with a given number of haystack units.
        tokenizer: The model's tokenizer.
        least: The fewest units the task makes sense with.
        most: The most units there are; None if there is no end of them. An item of all of them may be shorter
            than its length, by an eighth at most.
        between: Text that is added by going from one number of units to a larger one, if units differ much;
            it only makes the search faster.

    Returns:
        ``draft(n)`` with prompt and `max_new_tokens` within `length` tokens, while ``draft(n + 1)`` is not.

    Raises:
        TaskError: Even ``draft(least)`` is too long, or ``draft(most)`` far too short.
    """
    shortest = draft(least)
    around = frame(tokenizer, chat=shortest.chat)

    def tokens(units: int) -> int:
        item = draft(units)
        return len(render(tokenizer, item, around).ids) + item.max_new_tokens

    def added(low: int, high: int) -> int:
        assert between is not None
        return len(token_ids(tokenizer, between(low, high)))

    needed = tokens(least)
    if needed > shortest.length:
        raise TaskError(
            f"{shortest.task} needs at least {needed} tokens with this tokenizer (template, question and "
            f"{shortest.max_new_tokens} new tokens included), but the length is {shortest.length}; "
            f"ask for {_roomy(needed)} or more."
        )
    step = added if between is not None else None
    units = largest_fitting(tokens, shortest.length, least=least, most=most, added=step)
    if units == most and (reached := tokens(units)) < _FULL * shortest.length:
        raise TaskError(
            f"{shortest.task} has text for {reached} tokens at most in split {shortest.split}, but the length is "
            f"{shortest.length}; ask for {reached // 64 * 64} or less, or give more data."
        )
    return draft(units)


def largest_fitting(
    measure: Callable[[int], int],
    limit: int,
    *,
    least: int = 0,
    most: int | None = None,
    added: Callable[[int, int], int] | None = None,
) -> int:
    """Find n with ``measure(n) <= limit < measure(n + 1)``, by few calls of `measure`.

    `measure` should grow with n; it may go back a little on the way (a token merged here or there), then the
    n found is one of those that have the property.

    Args:
        measure: Tokens of n units; ``measure(least) <= limit`` must hold.
        limit: Tokens allowed.
        least: The smallest n.
        most: The largest n, returned if it fits; None if there is none.
        added: Cheap estimate of ``measure(b) - measure(a)`` for a < b.

    Raises:
        TaskError: ``measure(least)`` is above the limit, or `measure` stays within it for ever.
    """
    first = _Point(least, measure(least))
    if first.tokens > limit:
        raise TaskError(f"{least} units take {first.tokens} tokens, more than the {limit} allowed; raise the limit.")
    end = least + _UNITS_PER_TOKEN * max(limit, 1) if most is None else most
    low, high = first, None
    above = end + 1  # the smallest number known, or taken, not to fit
    probe, tries = least + max(1, (limit - first.tokens) // 64), 0
    while above - low.units > 1:
        probe = min(max(probe, low.units + 1), above - 1)
        point = _Point(probe, measure(probe))
        if point.tokens <= limit:
            low = point
        else:
            high, above = point, probe
        tries += 1
        if tries < _GUESSES:
            probe = _guess(first, low, high, limit, end, added)
        else:  # the counts are too uneven to guess from: halving ends in a few steps whatever they are
            probe = (low.units + above) // 2 if high else 4 * low.units + 4
    if low.units == end and most is None:
        raise TaskError(
            f"{end} units of text take no more than {limit} tokens with this tokenizer, so that no "
            "length can be reached; use the tokenizer of the model."
        )
    return low.units


@dataclass(frozen=True)
class _Point:
    """A number of units and the tokens they take."""

    units: int
    tokens: int


def _guess(
    first: _Point,
    low: _Point,
    high: _Point | None,
    limit: int,
    end: int,
    added: Callable[[int, int], int] | None,
) -> int:
    """Where the limit probably lies; any number will do, the caller keeps it inside its bracket."""
    # The mean over the whole way, not between the ends of the bracket: when these are close, one long word
    # makes the difference.
    far = high or low
    slope = (far.tokens - first.tokens) / max(far.units - first.units, 1)
    if slope <= 0:
        return 4 * low.units + 4
    near = high if high and high.tokens - limit < limit - low.tokens else low
    units, gap = near.units, limit - near.tokens
    if added is None or 4 * abs(gap) > limit:
        return units + int(gap // slope)
    below, above = low.units, high.units if high else end + 1
    for turn in range(_GUESSES):
        units += int(gap // slope)
        if turn > 3 and above <= end:
            units = (below + above) // 2
        units = min(max(units, below + 1), above - 1)
        if units <= below:
            break
        gap = limit - near.tokens
        gap -= added(near.units, units) if units > near.units else -added(units, near.units)
        if gap >= 0:
            below = units
        else:
            above = units
    return below


def _roomy(tokens: int) -> int:
    """Round up to a multiple of 64 with room to spare, since other items have longer keys and names."""
    return -(-(tokens + 32) // 64) * 64
