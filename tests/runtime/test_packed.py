"""The packed cache against attention written out row by row and head by head."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cachecraft.errors import ModelError
from cachecraft.runtime import grouping, packed, shared
from cachecraft.runtime.gather import in_window
from cachecraft.runtime.packed import PackedCache
from cachecraft.runtime.shared import SharedContext

HEADS, KV_HEADS, WIDTH, TOKENS, LAYERS, ROOM = 4, 2, 8, 23, 3, 12
SCALE = 0.35


class Rows:
    """The slow truth: for each row, layer and kv head the keys and values as plain tensors.

    Layers with a window are given whole and keep everything; what the window hides is left out when they attend.
    """

    def __init__(
        self,
        layers: list[tuple[Tensor, Tensor]],
        selections: list[list[Tensor]],
        windows: list[int | None] | None = None,
        softcap: float | None = None,
    ) -> None:
        self.windows, self.softcap = windows or [None] * LAYERS, softcap
        self.held = [
            [[(keys[g][mask[g]], values[g][mask[g]]) for g in range(KV_HEADS)] for (keys, values), mask in pairs]
            for pairs in (zip(layers, selection, strict=True) for selection in selections)
        ]

    def attend(self, row: int, layer: int, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Causal attention of (H, n, D) over what the row holds and its own (G, n, D) new tokens."""
        outputs = []
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            old_keys, old_values = self.held[row][layer][group]
            for i in range(query.shape[1]):
                seen = torch.cat([old_keys, keys[group, : i + 1]])
                last = -(self.windows[layer] or len(seen))
                logits = seen[last:] @ query[head, i] * SCALE
                if self.softcap is not None:
                    logits = self.softcap * (logits / self.softcap).tanh()
                outputs.append(logits.softmax(dim=0) @ torch.cat([old_values, values[group, : i + 1]])[last:])
        return torch.stack(outputs).view(HEADS, query.shape[1], WIDTH)

    def add(self, row: int, layer: int, keys: Tensor, values: Tensor) -> None:
        self.held[row][layer] = [
            (torch.cat([k, keys[g]]), torch.cat([v, values[g]])) for g, (k, v) in enumerate(self.held[row][layer])
        ]


def random_layers(generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    shape = (2, KV_HEADS, TOKENS, WIDTH)
    return [tuple(torch.randn(shape, generator=generator).unbind()) for _ in range(LAYERS)]


def random_mask(generator: torch.Generator, *, equal: bool) -> Tensor:
    """At least one entry per head; equally many in every head when `equal`."""
    order = torch.rand(KV_HEADS, TOKENS, generator=generator).argsort(dim=-1).argsort(dim=-1)
    keep = torch.randint(1, TOKENS + 1, (1 if equal else KV_HEADS, 1), generator=generator)
    return order < keep


def packed_cache(
    contexts: list[SharedContext], room: int = ROOM, windows: list[int | None] | None = None
) -> PackedCache:
    cache = PackedCache(contexts[0].layers, heads=HEADS, windows=windows)
    for context in contexts:
        cache.admit(context, room)
    return cache


def a_cache(seed: int, rows: int, *, room: int = ROOM) -> PackedCache:
    generator = torch.Generator().manual_seed(seed)
    selections = [[random_mask(generator, equal=True)] * LAYERS for _ in range(rows)]
    return packed_cache([SharedContext(random_layers(generator), selections)], room)


@pytest.mark.parametrize("many", [1, 3, 100])  # lines' entries always gathered; from 3 tokens a line; never
@pytest.mark.parametrize("nearly_all", [0.0, 2.0])  # a group's union never copied; always
@settings(max_examples=6)
@given(
    seed=st.integers(0, 2**32),
    contexts=st.sampled_from([[1], [2], [5], [2, 1], [3, 2]]),
    equal=st.booleans(),
    windows=st.sampled_from([[None] * 3, [None, 4, 9], [2, None, TOKENS + 3], [1, 3, TOKENS]]),
    softcap=st.sampled_from([None, 0.8]),
    call=st.sampled_from([-1000, 1000]),  # candidates apart; in one group
    passes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    data=st.data(),
)
def test_every_row_sees_its_own_entries_and_new_tokens_only(
    many, nearly_all, seed, contexts, equal, windows, softcap, call, passes, data
):
    generator = torch.Generator().manual_seed(seed)
    dense = [random_layers(generator) for _ in contexts]
    whole = torch.ones(KV_HEADS, TOKENS, dtype=torch.bool)
    chosen = [
        [[random_mask(generator, equal=equal) if w is None else whole for w in windows] for _ in range(rows)]
        for rows in contexts
    ]
    made = [
        SharedContext(
            [tuple(d if w is None else in_window(d, w) for d in pair) for pair, w in zip(layers, windows, strict=True)],
            [
                [mask if w is None else mask[:, : w - 1] for mask, w in zip(masks, windows, strict=True)]
                for masks in selections
            ],
        )
        for layers, selections in zip(dense, chosen, strict=True)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "MANY", many)
        patch.setattr(grouping, "CALL", call)
        patch.setattr(shared, "NEARLY_ALL", nearly_all)
        cache = packed_cache(made, windows=windows)
        truths = [Rows(*each, windows, softcap) for each in zip(dense, chosen, strict=True)]
        owner = [(truths[number], own) for number, rows in enumerate(contexts) for own in range(rows)]
        room = dict.fromkeys(range(len(owner)), ROOM)
        for most in passes:
            held = cache.rows
            counts = [data.draw(st.integers(0, min(most, room[row]))) for row in held]
            counts[data.draw(st.integers(0, len(held) - 1))] = 1
            accepted = [data.draw(st.integers(0, count)) for count in counts]
            cache.begin(counts)
            ends = torch.tensor(counts).cumsum(0).tolist()
            for layer in range(LAYERS):
                query = torch.randn(1, sum(counts), HEADS, WIDTH, generator=generator).transpose(1, 2)
                pair = torch.randn(2, 1, sum(counts), KV_HEADS, WIDTH, generator=generator).transpose(2, 3)
                keys, values = cache.layers[layer].update(*pair)
                found = cache.attend(layer, query, SCALE, softcap)
                assert found.shape == query.shape
                for row, count, end, kept in zip(held, counts, ends, accepted, strict=True):
                    truth, own = owner[row]
                    part = slice(end - count, end)
                    if count:
                        expected = truth.attend(own, layer, query[0, :, part], keys[0, :, part], values[0, :, part])
                        torch.testing.assert_close(found[0, :, part], expected, rtol=1e-4, atol=1e-5)
                    part = slice(end - count, end - count + kept)
                    truth.add(own, layer, keys[0, :, part], values[0, :, part])
            cache.accept(accepted)
            for row, kept in zip(held, accepted, strict=True):
                room[row] -= kept
            gone = {row for row in held if room[row] == 0 or data.draw(st.booleans())}
            cache.drop(gone)
            assert sorted(cache.rows) == sorted(set(held) - gone)
            if not cache.rows:
                break


def test_a_head_that_keeps_nothing_attends_to_the_new_tokens_only():
    generator = torch.Generator().manual_seed(0)
    layers = random_layers(generator)
    mask = torch.zeros(KV_HEADS, TOKENS, dtype=torch.bool)
    mask[0, :3] = True
    for count in (1, 10):  # attended with others, and alone
        cache = packed_cache([SharedContext(layers, [[mask] * LAYERS] * 2)])
        truth = Rows(layers, [[mask] * LAYERS] * 2)
        cache.begin([count, count])
        query = torch.randn(1, 2 * count, HEADS, WIDTH, generator=generator).transpose(1, 2)
        pair = torch.randn(2, 1, 2 * count, KV_HEADS, WIDTH, generator=generator).transpose(2, 3)
        keys, values = cache.layers[0].update(*pair)
        found = cache.attend(0, query, SCALE)
        expected = truth.attend(0, 0, query[0, :, :count], keys[0, :, :count], values[0, :, :count])
        torch.testing.assert_close(found[0, :, :count], expected, rtol=1e-4, atol=1e-5)


def test_a_pass_that_brings_nothing_or_too_much_is_refused():
    cache = a_cache(0, 2)
    with pytest.raises(ModelError, match="new tokens"):
        cache.begin([0, 0])
    with pytest.raises(ModelError, match="new tokens"):
        cache.begin([1])
    with pytest.raises(ModelError, match="room"):
        cache.begin([1, ROOM + 1])


def test_what_is_attended_together_shrinks_as_candidates_finish():
    def first(count: int) -> list[Tensor]:
        return [torch.arange(TOKENS).expand(KV_HEADS, -1) < count] * LAYERS

    layers = random_layers(torch.Generator().manual_seed(0))
    cache = packed_cache([SharedContext(layers, [first(15), first(3), first(5), first(2)])])

    def entries() -> int:
        cache.begin([1] * len(cache.rows))
        return cache._together[0][0].entries

    assert entries() == 15
    cache.drop({1})
    assert entries() == 15  # not worth a new copy yet
    cache.drop({0})
    assert entries() == 5


def test_lines_that_join_later_may_need_more_room_and_leave_the_others_as_they_were():
    generator = torch.Generator().manual_seed(0)
    layers = random_layers(generator)
    contexts = [SharedContext(layers, [[random_mask(generator, equal=False)] * LAYERS] * 2) for _ in range(2)]
    cache = packed_cache(contexts[:1], room=3)
    truth = Rows(layers, [*contexts[0].selections, *contexts[1].selections])
    for names in ([0, 1], [0, 1, 2, 3], [3, 1, 2]):
        if names[-1] == 3:
            assert cache.admit(contexts[1], 5) == [2, 3]
        if names[0] == 3:
            cache.drop({0})
        assert cache.rows == names
        cache.begin([1] * len(names))
        query = torch.randn(1, len(names), HEADS, WIDTH, generator=generator).transpose(1, 2)
        pair = torch.randn(2, 1, len(names), KV_HEADS, WIDTH, generator=generator).transpose(2, 3)
        keys, values = cache.layers[0].update(*pair)
        found = cache.attend(0, query, SCALE)
        for i, name in enumerate(names):
            part = slice(i, i + 1)
            expected = truth.attend(name, 0, query[0, :, part], keys[0, :, part], values[0, :, part])
            torch.testing.assert_close(found[0, :, part], expected, rtol=1e-4, atol=1e-5)
            truth.add(name, 0, keys[0, :, part], values[0, :, part])
        cache.accept([1] * len(names))


def test_a_cache_without_rows_left_has_none():
    cache = a_cache(0, 3)
    cache.drop({0, 1, 2})
    assert cache.rows == []


def test_a_cache_that_is_let_go_frees_its_memory_at_once():
    import gc
    import weakref

    gc.disable()
    try:
        cache = a_cache(0, 1, room=1)
        buffer = weakref.ref(cache._keys[0])
        del cache
        assert buffer() is None
    finally:
        gc.enable()
