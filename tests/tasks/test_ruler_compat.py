"""`ruler_compat`: what the original's seeding repeats from item to item, and that nothing repeats without it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from transformers import PreTrainedTokenizerFast

from cachecraft.tasks import SPLITS, Item, Sources, item_seed, load_tasks
from cachecraft.tasks.words import distinct, number_value, word_key


def make(
    name: str, index: int, tokenizer: PreTrainedTokenizerFast, *, compat: bool, length: int = 2500, seed: int = 0
) -> Item:
    (task,) = load_tasks([name], sources=Sources(ruler_compat=compat))
    return task.item(index, split="test", length=length, seed=seed, tokenizer=tokenizer)


def first_words(item: Item) -> str:
    """The haystack's first words, after the opening line and the needles that may stand before them."""
    start = item.context.index("\n") + 1
    for segment in item.segments:
        if segment.name in ("needle", "distractor") and segment.start == start:
            start = segment.end + 1
    return item.context[start : start + 60]


def test_essays_start_at_the_same_place_only_under_compat(plain: PreTrainedTokenizerFast) -> None:
    starts = {first_words(make("ruler:niah_single_2", index, plain, compat=True)) for index in range(8)}
    assert len(starts) == 1
    assert len({first_words(make("ruler:niah_single_2", index, plain, compat=False)) for index in range(8)}) >= 7


@pytest.mark.parametrize("compat", [True, False])
def test_needles_are_shuffled_alike_only_under_compat(compat: bool, plain: PreTrainedTokenizerFast) -> None:
    name, split = "ruler:niah_multivalue", "test"
    orders = set()
    for index in range(8):
        rng = Random(item_seed(0, split, name, 2500, index))
        distinct(lambda rng=rng: word_key(rng, SPLITS.index(split), Sources().words), 1)
        drawn = distinct(lambda rng=rng: number_value(rng, 7), 4)
        found = make(name, index, plain, compat=compat).references
        assert sorted(found) == sorted(drawn)
        orders.add(tuple(drawn.index(value) for value in found))
    places = list(range(4))
    Random(0).shuffle(places)
    assert (orders == {tuple(places)}) is compat
    assert compat or len(orders) > 3


@pytest.mark.parametrize("name", ["ruler:cwe", "ruler:fwe"])
def test_common_words_stand_in_the_same_places_only_under_compat(name: str, plain: PreTrainedTokenizerFast) -> None:
    def alike(compat: bool) -> int:
        """How many pairs of items with as many words have their answers in the same places."""
        found: dict[int, list[tuple[int, ...]]] = {}
        for index in range(16):
            item = make(name, index, plain, compat=compat, length=1700)
            (opening,) = (s for s in item.segments if s.name == "instruction")
            starts = {s.start for s in item.segments if s.name == "answer"}
            words = item.context[opening.end + 1 :].split(" ")
            at, numbers = opening.end + 1, []
            for number, word in enumerate(words):
                if at in starts:
                    numbers.append(number)
                at += len(word) + 1
            found.setdefault(len(words), []).append(tuple(numbers))
        return sum(len(each) - len(set(each)) for each in found.values() if len(each) > 1)

    assert alike(True) > 0
    assert alike(False) == 0


def test_the_base_seed_changes_the_order_that_all_items_share(plain: PreTrainedTokenizerFast) -> None:
    orders = []
    for seed in range(4):
        places = list(range(4))
        Random(seed).shuffle(places)
        orders.append(places)
    assert len(set(map(tuple, orders))) > 1
    items = {make("ruler:niah_multivalue", 0, plain, compat=True, seed=seed).references for seed in range(4)}
    assert len(items) == 4


def test_tasks_without_such_a_trap_are_the_same_either_way(plain: PreTrainedTokenizerFast) -> None:
    for name in ("ruler:vt", "ruler:niah_single_1"):
        assert make(name, 1, plain, compat=True).id == make(name, 1, plain, compat=False).id


def test_compat_is_off_by_default(plain: PreTrainedTokenizerFast, data: Path) -> None:
    for name in ("ruler:niah_single_2", "ruler:cwe", "ruler:fwe", "ruler:qa_1"):
        (default,) = load_tasks([name], sources=Sources(data=(str(data),)))
        (off,) = load_tasks([name], sources=Sources(data=(str(data),), ruler_compat=False))
        (on,) = load_tasks([name], sources=Sources(data=(str(data),), ruler_compat=True))
        ids = [t.item(0, split="test", length=2500, seed=3, tokenizer=plain).id for t in (default, off, on)]
        assert ids[0] == ids[1] != ids[2]
