"""The packed cache against attention written out row by row and head by head."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from cachecraft.errors import ModelError
from cachecraft.runtime.packed import PackedCache

HEADS, KV_HEADS, WIDTH, TOKENS, LAYERS, ROOM = 4, 2, 8, 23, 3, 12
SCALE = 0.35


class Rows:
    """The slow truth: for each row, layer and kv head the keys and values as plain tensors."""

    def __init__(self, layers: list[tuple[Tensor, Tensor]], selections: list[list[Tensor]]) -> None:
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
                weights = (seen @ query[head, i] * SCALE).softmax(dim=0)
                outputs.append(weights @ torch.cat([old_values, values[group, : i + 1]]))
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


@given(
    seed=st.integers(0, 2**32),
    groups=st.sampled_from([[[0]], [[1, 0]], [[0, 1, 2]], [[3], [0, 2, 1]], [[4, 1], [0], [2, 3]]]),
    equal=st.booleans(),
    passes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    data=st.data(),
)
def test_every_row_sees_its_own_entries_and_new_tokens_only(seed, groups, equal, passes, data):
    generator = torch.Generator().manual_seed(seed)
    layers = random_layers(generator)
    rows = sum(map(len, groups))
    selections = [[random_mask(generator, equal=equal) for _ in range(LAYERS)] for _ in range(rows)]
    if equal:
        selections = [[selection[0]] * LAYERS for selection in selections]  # layers that share one layout
    cache, truth = PackedCache(layers, selections, groups, heads=HEADS, room=ROOM), Rows(layers, selections)
    room = dict.fromkeys(range(rows), ROOM)
    for most in passes:
        held = cache.rows
        counts = [data.draw(st.integers(1, min(most, room[row]))) for row in held]
        accepted = [data.draw(st.integers(0, count)) for count in counts]
        cache.begin(counts)
        ends = torch.tensor(counts).cumsum(0).tolist()
        for layer in range(LAYERS):
            query = torch.randn(1, sum(counts), HEADS, WIDTH, generator=generator).transpose(1, 2)
            pair = torch.randn(2, 1, sum(counts), KV_HEADS, WIDTH, generator=generator).transpose(2, 3)
            keys, values = cache.layers[layer].update(*pair)
            found = cache.attend(layer, query, SCALE)
            assert found.shape == query.shape
            for row, count, end, kept in zip(held, counts, ends, accepted, strict=True):
                own = slice(end - count, end)
                expected = truth.attend(row, layer, query[0, :, own], keys[0, :, own], values[0, :, own])
                torch.testing.assert_close(found[0, :, own], expected, rtol=1e-4, atol=1e-5)
                part = slice(end - count, end - count + kept)
                truth.add(row, layer, keys[0, :, part], values[0, :, part])
        cache.accept(accepted)
        for row, kept in zip(held, accepted, strict=True):
            room[row] -= kept
        gone = {row for row in held if room[row] == 0 or data.draw(st.booleans())}
        cache.drop(gone)
        assert sorted(cache.rows) == sorted(set(held) - gone)
        if not cache.rows:
            break


def test_a_pass_in_which_a_row_brings_nothing_is_refused():
    generator = torch.Generator().manual_seed(0)
    selections = [[random_mask(generator, equal=True)] * LAYERS for _ in range(2)]
    cache = PackedCache(random_layers(generator), selections, [[0, 1]], heads=HEADS, room=ROOM)
    with pytest.raises(ModelError, match="new tokens"):
        cache.begin([1, 0])
    with pytest.raises(ModelError, match="new tokens"):
        cache.begin([1])


def test_rows_take_the_memory_of_what_they_keep_and_not_of_the_context():
    generator = torch.Generator().manual_seed(0)
    mask = torch.arange(TOKENS).expand(KV_HEADS, -1) < 5
    cache = PackedCache(random_layers(generator), [[mask] * LAYERS] * 3, [[0, 1], [2]], heads=HEADS, room=ROOM)
    assert cache.bytes == 3 * LAYERS * KV_HEADS * (5 + ROOM) * 2 * WIDTH * 4


def test_a_cache_without_rows_left_has_none():
    generator = torch.Generator().manual_seed(0)
    selections = [[random_mask(generator, equal=True)] * LAYERS for _ in range(3)]
    cache = PackedCache(random_layers(generator), selections, [[0, 1], [2]], heads=HEADS, room=ROOM)
    cache.drop({0, 1, 2})
    assert cache.rows == []


def test_a_cache_that_is_let_go_frees_its_memory_at_once():
    import gc
    import weakref

    keys = torch.zeros(2, 8, 4)
    gc.disable()
    try:
        cache = PackedCache([(keys, keys)], [[torch.ones(2, 8, dtype=torch.bool)]], [[0]], heads=4, room=1)
        buffer = weakref.ref(cache._keys[0])
        del cache
        assert buffer() is None
    finally:
        gc.enable()
