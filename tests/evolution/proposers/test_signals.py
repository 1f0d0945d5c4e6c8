"""The building blocks: each against its formula written out, finite on odd contents, right at the edges."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cachecraft.evolution.proposers import signals
from cachecraft.evolution.proposers.vocabulary import IMPORTS, SIGNALS, SLOTS, blocks
from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.features import LayerFeatures
from cachecraft.policy.source import FEATURES

G, T, D = 2, 13, 8


def vectors(seed: int = 0) -> Tensor:
    return torch.randn(G, T, D, generator=torch.Generator().manual_seed(seed))


def cosine(a: Tensor, b: Tensor) -> float:
    return float(a @ b / (a.norm() * b.norm()))


def each(x: Tensor, rule: Callable[[Tensor, int], float]) -> Tensor:
    """The (G, T) tensor of a rule on one head's (T, D) vectors and an index."""
    return torch.tensor([[rule(head, j) for j in range(head.shape[0])] for head in x])


def near(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-4, atol=1e-5)


def test_ranks_are_places_over_the_length_and_the_more_recent_of_equals_ranks_higher() -> None:
    found = signals.ranked(torch.tensor([[3.0, 1.0, 3.0, 2.0]]))
    near(found, torch.tensor([[2 / 4, 0.0, 3 / 4, 1 / 4]]))


def test_normalisations_do_what_they_say() -> None:
    signal = vectors()[..., 0]
    near(signals.standardised(signal).mean(dim=-1), torch.zeros(G))
    near(signals.standardised(signal).std(dim=-1, correction=0), torch.ones(G))
    near(signals.scaled(signal).amin(dim=-1), torch.zeros(G))
    near(signals.scaled(signal).amax(dim=-1), torch.ones(G))
    near(signals.softened(signal).mean(dim=-1), torch.ones(G))
    near(
        signals.softened(signal), signals.standardised(signal).exp() / signals.standardised(signal).exp().mean(-1, True)
    )
    near(signals.logged(signal.abs() + 1), (signal.abs() + 1).log())


@pytest.mark.parametrize("width", [1, 3, 5, 25])
def test_pools_use_the_neighbours_that_there_are(width: int) -> None:
    signal = vectors()[..., 0]
    reach = width // 2
    around = lambda head, j: head[max(0, j - reach) : j + reach + 1]  # noqa: E731
    near(signals.smoothed(signal, width), each(signal, lambda head, j: float(around(head, j).mean())))
    near(signals.peaked(signal, width), each(signal, lambda head, j: float(around(head, j).max())))


def test_sharing_mixes_in_the_mean_over_heads() -> None:
    signal = torch.tensor([[0.0, 4.0], [2.0, 0.0]])
    near(signals.shared(signal, 0.5), torch.tensor([[0.5, 3.0], [1.5, 1.0]]))
    near(signals.shared(signal, 1.0), torch.tensor([[1.0, 2.0], [1.0, 2.0]]))


def test_distances_are_cosines_with_the_mean_direction() -> None:
    x = vectors()
    unit = x / x.norm(dim=-1, keepdim=True)
    near(signals.distance(x), torch.stack([1 - head @ head.mean(0) / head.mean(0).norm() for head in unit]))
    mean = lambda head, low, high: torch.stack([v / v.norm() for v in head[max(0, low) : high]]).mean(0)  # noqa: E731
    near(signals.local_distance(x, 5), each(x, lambda head, j: 1 - cosine(head[j], mean(head, j - 2, j + 3))))
    near(
        signals.novelty(x, 4),
        each(x, lambda head, j: 1 - cosine(head[j], mean(head, j - 4, j)) if j else 1.0),
    )


def test_steps_unusual_channels_and_sharpness() -> None:
    x = vectors()
    near(signals.step(x), each(x, lambda head, j: float((head[j] - head[max(0, j - 1)]).norm())))
    z = (x - x.mean(dim=1, keepdim=True)) / x.std(dim=1, keepdim=True, correction=0)
    near(signals.unusual(x, 2), z.norm(dim=-1) ** 2 / D)
    near(signals.unusual(x, 3), (z.abs() ** 3).sum(dim=-1) / D)
    near(signals.sharpness(x), each(x, lambda head, j: float(head[j].abs().max() / head[j].norm())))


def test_leverage_is_the_ridge_leverage_score() -> None:
    x = vectors()
    expected = []
    for head in x.double():
        centred = head - head.mean(0)
        gram = centred.T @ centred
        ridge = 0.01 * gram.diagonal().mean() * torch.eye(D, dtype=torch.float64)
        expected.append((centred @ torch.linalg.inv(gram + ridge) * centred).sum(-1))
    near(signals.leverage(x), torch.stack(expected))


def test_what_reads_the_features_as_a_whole() -> None:
    layer = synthetic_layer(T, kv_heads=G, group=3, head_dim=D)
    f = layer.view()
    queries, keys = f.queries.view(G, 3, T, D), f.keys
    near(signals.own_match(f), (queries * keys[:, None]).sum(-1).mean(1))
    outputs = torch.einsum("gtd,ghdo->ghto", f.values, f.output_projection.view(G, 3, D, -1))
    near(signals.output_norm(f), outputs.norm(dim=-1).mean(1))
    places = torch.arange(T, T + 16, 8)
    mean = torch.stack([f.rotate(f.queries_unrotated.mean(1), int(place)) for place in places]).mean(0).view(G, 3, D)
    logits = torch.einsum("gtd,ghd->ght", keys, mean) / math.sqrt(D)
    near(signals.expected(f, 16), logits.softmax(-1).mean(1))
    near(signals.recency(f)[0], torch.arange(T) / T)
    near(signals.marked(f.punctuation_mask, G)[1], f.punctuation_mask.float())


def whole(layer: LayerFeatures) -> list[tuple[str, Tensor]]:
    """Every building block and kind of signal on one layer."""
    f = layer.view()
    found = []
    for name, function in vars(signals).items():
        if not inspect.isfunction(function) or function.__module__ != signals.__name__:
            continue
        first, *others = inspect.signature(function).parameters
        given = {"f": f, "x": f.values, "signal": f.values[..., 0], "mask": f.special_mask}[first]
        numbers = [{"width": 5, "share": 0.5, "ahead": 40, "power": 4, "heads": f.kv_heads}[other] for other in others]
        found.append((name, function(given, *numbers)))
    return found


@pytest.mark.parametrize("tokens", [1, 2, 30])
@pytest.mark.parametrize("content", ["random", "zero", "equal", "huge"])
def test_every_block_is_finite_and_of_the_right_shape(tokens: int, content: str) -> None:
    plain = synthetic_layer(tokens)
    arrays = {name: plain.given(name) for name in ("keys", "values", "queries", "output_projection")}
    change = {"zero": torch.zeros_like, "equal": torch.ones_like, "huge": lambda x: 1e6 * x}.get(content, torch.clone)
    changed = {name: change(array) for name, array in arrays.items()}
    masks = {name: plain.given(name) for name in ("special_mask", "punctuation_mask")}
    layer = LayerFeatures(**changed, **masks, layer=0, layers=2, rotary=plain.rotary)
    for name, found in whole(layer):
        assert found.shape == (2, tokens), name
        assert found.is_floating_point() and bool(found.isfinite().all()), name


def test_programs_get_the_blocks_as_private_functions_that_stand_alone() -> None:
    for name, text in blocks().items():
        assert text.startswith(f"def {name}("), name
        space: dict[str, object] = {}
        exec("\n".join(IMPORTS.values()), space)
        exec(text, space)
        names = space[name].__code__.co_names  # type: ignore[attr-defined]
        assert not [each for each in names if f"_{each}" in blocks()], f"{name} calls a block by its public name"


def test_every_kind_of_signal_reads_real_features_and_recognises_itself() -> None:
    names = set()
    for signal in SIGNALS:
        assert signal.features - {"x"} <= FEATURES, signal
        for vectors_used in signal.vectors if "{x}" in signal.pattern else ("",):
            slots = {name: each.low for name, each in SLOTS.items()}
            text = signal.pattern.format(x=vectors_used, over="mean", **slots)
            assert signal.regex.fullmatch(text), text
            names.add(signal.name.format(x=vectors_used))
    assert len(names) == sum(len(s.vectors) if "{x}" in s.pattern else 1 for s in SIGNALS), "names are distinct"
