"""Changing numbers: only those that may be changed, within their limits, in place."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft.evolution.interface import LEVELS, Interface, check_edit
from cachecraft.evolution.proposers.grammar import Grammar, changed_whole, log_whole
from cachecraft.evolution.proposers.numbers import changed, numbers
from cachecraft.evolution.proposers.vocabulary import SLOTS, Range
from cachecraft.evolution.proposers.writing import write_form
from cachecraft.policy.contract import load_policy
from cachecraft.policy.source import read_source

SOURCE = '''"""One signal, with 3 things that are no number of it."""


def protect(f, *, window: int = 64):
    return 4, window


def _inside(x, guard=1e-12):
    return x[..., 0] * 0.25 + x.clamp(min=1e-9)[..., 1]


def score_tokens(f, *, window: int = 64, weight: float = 0.5):  # 7 is in a comment
    return weight * f.window_attention(window).mean(dim=(1, 2)) + 1.5 * _smoothed(_inside(f.keys), 9)


def select_tokens_to_keep(scores, keep, f, *, size: int = 8, share: float = 0.3):
    return scores > size
'''


def shown(interface: Interface) -> list[tuple[str, float]]:
    return [(each.label, each.value) for each in numbers(SOURCE, interface)]


def test_numbers_are_found_with_their_kind_and_shapes_and_guards_are_left_alone() -> None:
    assert shown(Interface("constants")) == [
        ("window", 64),
        ("first", 4),
        ("a weight", 0.25),
        ("window", 64),
        ("weight", 0.5),
        ("a weight", 1.5),
        ("_smoothed", 9),
        ("size", 8),
        ("share", 0.3),
    ]


def test_at_the_other_levels_only_numbers_of_the_editable_part_are_found() -> None:
    assert [label for label, _ in shown(Interface("selector"))] == ["window", "first", "size", "share"]
    assert [label for label, _ in shown(Interface("scorer"))] == [
        "a weight",
        "window",
        "weight",
        "a weight",
        "_smoothed",
    ]
    assert shown(Interface("allocation")) == []


@given(st.integers(0, 10**6))
def test_only_numbers_change_and_a_shared_parameter_keeps_one_default(seed: int) -> None:
    found = changed(random.Random(seed), SOURCE, Interface("constants"))
    assert found is not None
    source, note = found
    assert check_edit(SOURCE, source, Interface("constants")) == []
    assert note.startswith("Set ")
    assert "# 7 is in a comment" in source and "with 3 things" in source
    read_source(source, "changed")  # refuses a parameter with two defaults


@given(st.integers(0, 10**6), st.sampled_from(LEVELS))
def test_grammar_programs_stay_inside_their_interface(seed: int, level: str) -> None:
    parent = write_form(Grammar(Interface()).program(random.Random(seed)))
    found = changed(random.Random(seed), parent, Interface(level))  # type: ignore[arg-type]
    if found is not None:
        assert check_edit(parent, found[0], Interface(level)) == []  # type: ignore[arg-type]
        assert found[0] != parent


@given(st.integers(0, 10**6))
def test_values_stay_within_their_limits_over_many_steps(seed: int) -> None:
    draw = random.Random(seed)
    source, interface = SOURCE, Interface("constants")
    for _ in range(8):
        found = changed(draw, source, interface)
        source = found[0] if found else source
    for each in numbers(source, interface):
        assert each.within is None or each.within.low <= each.value <= each.within.high
        assert not (each.within and each.within.odd) or each.value % 2 == 1
        assert not each.share or 0 < each.value < 1
        assert each.value >= 0


@given(st.integers(0, 10**6), st.sampled_from(list(SLOTS)))
def test_whole_numbers_are_drawn_inside_their_range(seed: int, slot: str) -> None:
    draw, within = random.Random(seed), SLOTS[slot]
    value = log_whole(draw, within)
    moved = changed_whole(draw, value, within)
    for each in (value, moved):
        assert within.low <= each <= within.high
        assert not within.odd or each % 2
    assert moved != value


def test_a_range_of_one_has_no_other_number() -> None:
    assert changed_whole(random.Random(0), 3, Range(3, 3)) == 3


def test_a_program_without_numbers_is_left_alone() -> None:
    assert changed(random.Random(0), load_policy("observed_attention").source, Interface("constants")) is None


@pytest.mark.parametrize("name", ["frc", "snapkv", "h2o"])
def test_built_in_policies_can_be_tuned(name: str, tmp_path: Path) -> None:
    source = load_policy(name).source
    found = changed(random.Random(1), source, Interface("constants"))
    assert found is not None
    assert ast.dump(ast.parse(found[0])) != ast.dump(ast.parse(source))
    path = tmp_path / "tuned.py"
    path.write_text(found[0])
    assert load_policy(str(path)).id != load_policy(name).id
