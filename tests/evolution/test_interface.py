"""The interface: what may be edited at each level, and that every other edit is refused with a sentence."""

from __future__ import annotations

import pytest

from cachecraft.errors import RunError, UnknownNameError
from cachecraft.evolution.interface import LEVELS, Interface, check_edit, protected_definitions

PARENT = '''"""Two signals."""

import torch
from torch import Tensor

from cachecraft.policy.selectors import chunks

SMALL = 1e-6


def protect(f, *, sinks: int = 4):
    return _first(sinks), 8


def _first(sinks):
    return sinks


def _norm(x):
    return x.norm(dim=-1).clamp(min=SMALL)


def score_tokens(f, *, weight: float = 0.5):
    """Norms."""
    return weight * _norm(f.values) - _norm(f.keys)


def select_tokens_to_keep(scores, keep, f, *, size: int = 8):
    return chunks(scores, keep, f.protected, size=size)
'''


def edited(*changes: tuple[str, str]) -> str:
    child = PARENT
    for before, after in changes:
        assert child.count(before) == 1, before
        child = child.replace(before, after)
    return child


@pytest.mark.parametrize("level", LEVELS)
def test_an_unchanged_program_and_another_layout_pass_at_every_level(level: str) -> None:
    same = edited(('"""Norms."""', '"""Two norms, one of them taken off."""  # as it was'))
    assert check_edit(PARENT, PARENT, Interface(level)) == []
    assert check_edit(PARENT, same, Interface(level)) == []


@pytest.mark.parametrize(
    ("change", "levels"),
    [
        (("weight: float = 0.5", "weight: float = 0.7"), {"constants", "scorer", "scorer+selector"}),
        (("return _first(sinks), 8", "return _first(sinks), 16"), {"constants", "selector", "scorer+selector"}),
        (("size: int = 8", "size: int = 4"), {"constants", "selector", "scorer+selector"}),
        (("- _norm(f.keys)", "+ _norm(f.keys)"), {"scorer", "scorer+selector"}),
        (("x.norm(dim=-1)", "x.abs().sum(dim=-1)"), {"scorer", "scorer+selector"}),
        (("    return sinks\n", "    return 2 * sinks\n"), {"selector", "scorer+selector"}),
        (("f.protected, size=size)", "f.protected, size=size, per_head=True)"), {"selector", "scorer+selector"}),
        (("weight: float = 0.5", "weight: int = 1"), {"scorer", "scorer+selector"}),
        (
            ("def _norm", "def allocate(scores, total, floor):\n    return _norm(scores)\n\n\ndef _norm"),
            {"allocation"},
        ),
    ],
    ids=lambda value: value[1][:30] if isinstance(value, tuple) else "",
)
def test_an_edit_passes_exactly_at_the_levels_that_cover_it(change: tuple[str, str], levels: set[str]) -> None:
    child = edited(change)
    assert {level for level in LEVELS if not check_edit(PARENT, child, Interface(level))} == levels


def test_a_helper_that_protected_code_uses_is_protected_too() -> None:
    shared = edited(("return _first(sinks), 8", "return int(_norm(f.keys).shape[0]), 8"))
    child = shared.replace("x.norm(dim=-1)", "x.abs().sum(dim=-1)")
    found = check_edit(shared, child, Interface("scorer"))
    assert found == ["protect uses _norm, changed; at the level 'scorer' only score_tokens may be edited."]
    assert protected_definitions(shared, Interface("scorer")) >= {"protect", "_norm", "SMALL"}


def test_shadowing_a_name_that_protected_code_uses_is_seen() -> None:
    child = edited(("SMALL = 1e-6", "SMALL = 1e-6\n\n\ndef int(x):\n    return 0"))
    parent = edited(("return _first(sinks), 8", "return int(sinks), 8"))
    child = child.replace("return _first(sinks), 8", "return int(sinks), 8")
    assert "protect uses int, changed" in check_edit(parent, child, Interface("scorer"))[0]
    other = edited(("import chunks", "import pages as chunks"))
    assert "chunks" in check_edit(PARENT, other, Interface("scorer"))[0]


@pytest.mark.parametrize(
    ("addition", "sentence"),
    [
        ("\n\nprint('loaded')\n", "runs when the file is loaded"),
        ("\n\nfor _ in range(3):\n    pass\n", "runs when the file is loaded"),
        ("\n\ndef _norm(x):\n    return x\n", "_norm is defined twice"),
        ("\n\ndef _more(x):\n    global SMALL\n    SMALL = 1\n", "global"),
        ("\n\ndef _more(:\n", "not valid Python"),
    ],
)
def test_what_blurs_the_parts_is_refused_at_every_level(addition: str, sentence: str) -> None:
    for level in LEVELS:
        assert any(sentence in each for each in check_edit(PARENT, PARENT + addition, Interface(level)))


def test_removing_a_protected_function_is_refused() -> None:
    child = PARENT[: PARENT.index("def select_tokens_to_keep")]
    assert "was removed" in check_edit(PARENT, child, Interface("scorer"))[0]
    assert check_edit(PARENT, child, Interface("selector")) == []


@pytest.mark.parametrize(
    "scorer",
    [
        "f.attention_received().mean(dim=1)",
        "(lambda g: g.attention_received().mean(dim=1))(f)",
        "[f][0].attention_received().mean(dim=1)",
    ],
)
def test_a_feature_that_is_not_offered_may_not_be_read_under_any_name(scorer: str) -> None:
    interface = Interface("scorer", frozenset({"keys", "values"}))
    child = edited(("weight * _norm(f.values) - _norm(f.keys)", scorer))
    assert any("attention_received may not be read" in each for each in check_edit(PARENT, child, interface))
    assert check_edit(PARENT, child, Interface("scorer")) == []


def test_results_of_tensor_methods_and_shapes_are_no_features() -> None:
    interface = Interface("scorer", frozenset({"keys"}))
    child = edited(("weight * _norm(f.values) - _norm(f.keys)", "f.keys.max(dim=-1).values / f.tokens"))
    assert check_edit(PARENT, child, interface) == []


def test_an_interface_survives_being_written_and_read() -> None:
    for interface in (Interface(), Interface("constants"), Interface("scorer", frozenset({"keys", "layer"}))):
        assert Interface.from_dict(interface.to_dict()) == interface


@pytest.mark.parametrize("bad", [{}, {"level": "scorer"}, {"level": "scorer", "features": "keys"}, {"features": None}])
def test_an_interface_is_read_only_from_what_it_writes(bad: dict[str, object]) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        Interface.from_dict(bad)


def test_unknown_levels_and_features_are_named() -> None:
    with pytest.raises(UnknownNameError, match="did you mean scorer"):
        Interface("scorrer")
    with pytest.raises(UnknownNameError, match="did you mean keys"):
        Interface("scorer", frozenset({"keyss"}))
