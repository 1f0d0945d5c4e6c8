"""Dividing a budget: exact totals, the published formulas, refusals with the reason, files of budgets."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecraft.errors import BudgetError, UnknownNameError
from cachecraft.policy import budgets_file
from cachecraft.policy.allocation import NAMES, Allocation, Shape, adaptive, apportion, explicit, over_model, pyramid
from cachecraft.policy.budgets_file import FORMAT, parse_allocation
from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.contract import load_policy
from cachecraft.policy.decide import decide, score, select
from cachecraft.policy.division import decide_adaptive
from cachecraft.policy.protection import clip_protection
from cachecraft.policy.ranking import nested_ranks
from cachecraft.policy.sequence import decide_sequence
from cachecraft.policy.variants import variant

LAYERS, HEADS, TOKENS = 3, 2, 40


def sequence() -> list:
    return [synthetic_layer(TOKENS, kv_heads=HEADS, seed=n, layer=n, layers=LAYERS) for n in range(LAYERS)]


@settings(max_examples=40)
@given(
    shares=st.lists(st.floats(0, 1e4) | st.integers(0, 50).map(float), min_size=1, max_size=12),
    high=st.integers(1, 60),
    part=st.floats(0, 1),
)
def test_parts_sum_to_the_total_lie_in_range_and_follow_their_shares(shares: list[float], high: int, part: float):
    reach = sum(high if share else 1 for share in shares)
    total = len(shares) + int(part * (reach - len(shares)))
    if not any(shares):
        with pytest.raises(BudgetError, match="all are zero"):
            apportion(shares, total, 1, high)
        return
    parts = apportion(shares, total, 1, high)
    assert sum(parts) == total and min(parts) >= 1 and max(parts) <= high
    by_share = [own for _, own in sorted(zip(shares, parts, strict=True))]
    assert all(small <= large + 1 for small, large in itertools.pairwise(by_share))


def test_whole_shares_of_the_right_total_stay_and_remainders_go_to_the_largest() -> None:
    assert apportion([5, 0, 9, 2], 16, 0, 20) == [5, 0, 9, 2]
    assert apportion([1, 1, 1], 10, 0, 10) == [4, 3, 3]
    assert apportion([10, 1, 1], 12, 1, 6) == [6, 3, 3]
    for shares, total, told in (([1, 0], 30, "zero"), ([1, -1], 4, "one is -1"), ([1, float("nan")], 4, "nan")):
        with pytest.raises(BudgetError, match=told):
            apportion(shares, total, 1, 20)


@settings(max_examples=40)
@given(layers=st.integers(1, 12), tokens=st.integers(1, 300), part=st.floats(0.01, 1), window=st.integers(0, 80))
def test_a_pyramid_falls_to_a_twentieth_within_the_exact_total(layers: int, tokens: int, part: float, window: int):
    keep = max(1, int(part * tokens))
    made = pyramid(Shape(layers, 2, tokens), keep, window)
    by_layer = made.counts[:, 0].tolist()
    assert sum(by_layer) == layers * keep and min(by_layer) >= 1 and max(by_layer) <= tokens
    assert by_layer == sorted(by_layer, reverse=True)
    assert bool(made.note) == (keep > tokens - window)
    assert pyramid(Shape(layers, 2, tokens), keep, window, reverse=True).counts[:, 1].tolist() == by_layer[::-1]


def test_a_pyramid_has_the_published_ends() -> None:
    assert pyramid(Shape(5, 1, 1000), 100, 64).counts.flatten().tolist() == [195, 148, 100, 52, 5]
    assert pyramid(Shape(5, 1, 200), 100, 64).counts.flatten().tolist() == [136, 118, 100, 82, 64]
    refused = pyramid(Shape(5, 1, 150), 100, 64)
    assert refused.counts.flatten().tolist() == [100] * 5 and "kept alike" in refused.note


@settings(max_examples=40)
@given(seed=st.integers(0, 999), keep=st.integers(1, 12), last=st.integers(0, 5))
def test_adaptive_heads_keep_the_best_of_the_layer_above_a_safeguard(seed: int, keep: int, last: int):
    scores = torch.randn(3, 12, generator=torch.Generator().manual_seed(seed))
    protected = clip_protection(0, last, torch.full((3,), keep), 12) if last else None
    counts = adaptive(scores, protected, keep)
    sure = max(1, int(0.2 * keep))
    held = torch.zeros(3, 12, dtype=torch.bool) if protected is None else protected.clone()
    for head in range(3):
        first = held[head] if protected is not None else torch.zeros(12, dtype=torch.bool)
        order = sorted(range(12), key=lambda t, h=head, f=first: (not f[t], -float(scores[h, t])))
        held[head, order[:sure]] = True
    rest = sorted(((float(scores[h, t]), h) for h in range(3) for t in range(12) if not held[h, t]), reverse=True)
    expected = held.sum(dim=1)
    for _, head in rest[: 3 * keep - int(held.sum())]:
        expected[head] += 1
    assert counts.tolist() == expected.tolist()
    whole = over_model([scores, 5 + scores], [None, None], keep)
    assert int(whole.sum()) == 6 * keep and int(whole.min()) >= 1 and int(whole[1].sum()) >= int(whole[0].sum())


def test_budgets_for_another_model_are_refused_and_what_gives_way_is_said() -> None:
    shape = Shape(LAYERS, HEADS, TOKENS)
    with pytest.raises(BudgetError, match="for 2 layers, but this model has 3"):
        explicit(shape, [[1.0], [2.0]], 4)
    with pytest.raises(BudgetError, match="for 3 kv heads"):
        explicit(shape, [[1.0, 1.0, 1.0]] * 3, 4)
    crowded = explicit(shape, [[8.0], [1.0], [1.0]], 20)
    assert crowded.counts.tolist() == [[40, 40], [10, 10], [10, 10]]
    assert crowded.note.startswith("1 layers would keep more")
    assert explicit(shape, [[3.0, 1.0]] * 3, 10).counts.tolist() == [[15, 5]] * 3


@pytest.mark.parametrize("spec", ["knorm", "snapkv:window=6", "criticalkv(snapkv:window=6)", "h2o"])
def test_every_allocation_keeps_the_exact_total_of_every_scorer(spec: str) -> None:
    shares = Allocation("explicit", ((3.0, 1.0), (2.0, 2.0), (1.0, 3.0)))
    for allocation in (*map(Allocation, NAMES), shares):
        policy = variant(load_policy(spec), allocation=allocation)
        for keep, decisions in zip((4, 13), decide_sequence(policy, sequence, [4, 13]), strict=True):
            counts = torch.stack([decision.mask.sum(dim=-1) for decision in decisions])
            assert int(counts.sum()) == keep * LAYERS * HEADS and int(counts.min()) >= 1
            if allocation.name == "explicit":
                assert counts.tolist() == explicit(Shape(LAYERS, HEADS, TOKENS), shares.shares, keep).counts.tolist()
            if allocation.name == "uniform":
                assert (counts == keep).all()


def test_a_scorer_that_reads_its_budget_is_scored_again_with_its_heads_own() -> None:
    plain = load_policy("criticalkv(snapkv:window=6)")
    (found,) = decide_sequence(variant(plain, allocation=Allocation("adaptive")), sequence, [15])
    counts = [decision.mask.sum(dim=-1) for decision in found]
    assert found[0].read_keep and any(own[0] != own[1] for own in counts)
    for layer, own, decision in zip(sequence(), counts, found, strict=True):
        assert torch.equal(decision.mask, select(plain, score(plain, layer, own), own, layer).mask)


def test_a_window_that_is_part_of_the_budget_is_that_of_the_heads_own_budget() -> None:
    layer = synthetic_layer(64, kv_heads=2, group=2, head_dim=8, seed=3)
    (decision,) = decide_adaptive(load_policy("h2o"), layer, [16])
    smallest = int(decision.mask.sum(dim=-1).min())
    assert smallest < 16, "or the case says nothing"
    assert bool(decision.mask[:, -(smallest // 2) :].all()) and not bool(decision.mask[:, -(smallest // 2) - 3 :].all())


@pytest.mark.parametrize(
    ("spec", "selector", "nested"),
    [
        ("knorm", None, True),
        ("snapkv:window=6", None, True),
        ("streaming_llm", "chunks:5", True),
        ("snapkv:window=60", "pages:4", True),
        ("frc", "tokens", True),
        ("h2o", None, False),
        ("criticalkv(snapkv)", None, False),
    ],
)
def test_one_ranking_gives_what_the_policy_keeps_at_every_budget(spec: str, selector: str | None, nested: bool):
    policy, layer = load_policy(spec, selector=selector), sequence()[1]
    ranking = nested_ranks(policy, layer)
    assert (ranking is not None) == nested
    if ranking is not None:
        for keep in ([1, 2], [3, 5], [4, 9], [12, 7], [39, 40]):
            counts = torch.tensor(keep)
            assert torch.equal(ranking.ranks < counts[:, None], decide(policy, layer, [counts])[0].mask)


def test_heads_may_share_the_budget_that_a_file_gives_their_layer() -> None:
    plain = load_policy("snapkv:window=6")
    shared = variant(plain, allocation=Allocation("explicit", ((3.0,), (1.0,), (2.0,)), adaptive_heads=True))
    (found,) = decide_sequence(shared, sequence, [10])
    for layer, decision, keep in zip(sequence(), found, (15, 5, 10), strict=True):
        alone = decide_adaptive(plain, layer, [keep])[0].mask
        assert int(decision.mask.sum()) == HEADS * keep and torch.equal(decision.mask, alone)
    assert shared.id != variant(plain, allocation=Allocation("explicit", ((3.0,), (1.0,), (2.0,)))).id
    assert Allocation.restored(shared.allocation.identity) == shared.allocation


def test_an_allocation_is_part_of_a_policys_identity() -> None:
    plain = load_policy("knorm")
    made = [load_policy("knorm", allocation=name) for name in NAMES]
    assert len({plain.id, *(policy.id for policy in made)}) == 1 + len(NAMES)
    assert [policy.waits for policy in made] == [name == "global" for name in NAMES]
    one, two = (variant(plain, allocation=Allocation("explicit", ((1.0,),), label)) for label in ("a", "b"))
    assert one.id == two.id, "what a file is called changes no result"


def write(path: Path, **given: object) -> str:
    path.write_text(json.dumps({"format": FORMAT} | given))
    return str(path)


def test_a_budgets_file_is_an_allocation(tmp_path: Path) -> None:
    (tmp_path / "b1").mkdir()
    layers = parse_allocation(write(tmp_path / "b1" / "budgets.json", budgets=[10, 20.5]))
    assert (layers.name, str(layers), layers.shares) == ("explicit", "b1", ((10.0,), (20.5,)))
    heads = parse_allocation(write(tmp_path / "mine.json", budgets=[[1, 2], [3, 4]]))
    assert (str(heads), heads.shares) == ("mine", ((1.0, 2.0), (3.0, 4.0)))
    assert Allocation.restored(heads.identity).shares == heads.shares


def test_budgets_that_come_along_are_named_by_a_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets_file, "SHIPPED", tmp_path)
    write(tmp_path / "craft-tiny.json", budgets=[1, 2, 3], policy_id=load_policy("craft").id, target=64)
    found = load_policy("craft", allocation="craft-tiny").allocation
    assert found is not None and (str(found), found.shares) == ("craft-tiny", ((1.0,), (2.0,), (3.0,)))
    with pytest.raises(BudgetError, match="for 3 layers, but this model has 2"):
        found.require_model(2, HEADS)
    with pytest.raises(UnknownNameError, match="did you mean craft-tiny"):
        parse_allocation("craft-tny")
    with pytest.raises(UnknownNameError, match="known: adaptive, craft-tiny, global"):
        parse_allocation("?")


def test_budgets_that_come_along_are_for_the_policy_that_comes_along() -> None:
    for name in budgets_file.shipped_budgets():
        held = budgets_file.read_budgets(budgets_file.SHIPPED / f"{name}.json")
        assert held.policy_id == load_policy(held.policy).id and held.target, name


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"budgets": [1, -2]}, "-2 is no number of entries"),
        ({"budgets": [0, 0]}, "all budgets are zero"),
        ({"budgets": [[1, 2], [3]]}, "different numbers of kv heads"),
        ({"budgets": []}, "budgets"),
        ({"budgets": [1], "layers": 3}, "layers"),
        ({"budgets": [[1, 2]], "heads": "adaptive"}, "one number each"),
        ({"budgets": [1], "format": "other"}, "format"),
        ({"budgets": [1e308, 1e308]}, r"above 1e\+12"),
        ({"budgets": [[1, 10**400]]}, r"above 1e\+12"),
    ],
)
def test_a_budgets_file_that_means_nothing_is_refused_in_a_sentence(tmp_path: Path, given: dict, told: str) -> None:
    with pytest.raises(BudgetError, match=told) as error:
        parse_allocation(write(tmp_path / "b.json", **given))
    assert "\n" not in str(error.value)
    with pytest.raises(BudgetError, match="cannot be read"):
        parse_allocation(str(tmp_path / "none.json"))
    with pytest.raises(UnknownNameError, match="did you mean pyramid"):
        parse_allocation("pyramide")
