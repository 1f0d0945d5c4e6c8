"""Identical programs and identical behaviour are recognised; different ones are told apart."""

from __future__ import annotations

import pytest
import torch

from cachecraft.evolution.program import behaviour_id, canonical, program_id

PLAIN = """
import torch
from cachecraft.policy.selectors import chunks

def _norm(x, power=2):
    size = x.norm(dim=-1)
    return size**power

def score_tokens(f, *, weight=0.5):
    keys = _norm(f.keys)
    return weight * keys + _norm(f.values, power=3)
"""
SAME = '''
"""Norms, summed."""
from torch import Tensor
import torch as t
import math

def unused(x):
    return math.sqrt(x)

def score_tokens(features, *, share: float = 0.5) -> Tensor:
    """Higher is kept longer."""
    norms: Tensor = _length(features.keys)   # of keys
    return (share * norms + _length(features.values, power=3))


def _length(vectors: Tensor, power: int = 2) -> Tensor:
    length = vectors.norm(
        dim=-1,
    )
    return length ** power
'''


def test_layout_docstrings_names_order_and_unused_parts_do_not_matter() -> None:
    assert canonical(PLAIN) == canonical(SAME)
    assert program_id(PLAIN) == program_id(SAME)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("weight=0.5", "weight=0.6"),
        ("weight=0.5", "weight=1"),
        ("power=3", "power=4"),
        ("f.keys", "f.values"),
        ("return size**power", "return power**size"),
        ("weight * keys + ", "weight * keys - "),
        ("def score_tokens", "def protect(f):\n    return 1, 0\n\ndef score_tokens"),
    ],
)
def test_what_can_change_a_choice_makes_another_program(before: str, after: str) -> None:
    assert before in PLAIN
    assert program_id(PLAIN) != program_id(PLAIN.replace(before, after))


def test_two_locals_are_not_confused() -> None:
    one = "def score_tokens(f):\n    a = f.keys\n    b = f.values\n    return (a - b).norm(dim=-1)"
    two = "def score_tokens(f):\n    a = f.keys\n    b = f.values\n    return (b - a).norm(dim=-1)"
    assert program_id(one) != program_id(two)


def test_imports_count_by_what_they_are_not_by_their_name() -> None:
    one = "from torch.nn.functional import pad\ndef score_tokens(f):\n    return pad(f.keys, (1, 2))"
    two = "import torch.nn.functional as nn\ndef score_tokens(g):\n    return nn.pad(g.keys, (1, 2))"
    other = "from torch.nn.functional import normalize as pad\ndef score_tokens(f):\n    return pad(f.keys, (1, 2))"
    assert program_id(one) == program_id(two)
    assert program_id(one) != program_id(other)


def test_what_does_not_parse_is_said_to() -> None:
    with pytest.raises(SyntaxError):
        program_id("def score_tokens(f:")


def test_behaviour_is_the_same_exactly_when_the_kept_entries_are() -> None:
    mask = torch.rand(2, 9, generator=torch.Generator().manual_seed(0)) < 0.5
    other = mask.clone()
    other[1, 3] = ~other[1, 3]
    assert behaviour_id([[mask, mask]]) == behaviour_id([[mask.clone(), mask.clone()]])
    assert behaviour_id([[mask, mask]]) != behaviour_id([[mask, other]])
    assert behaviour_id([[mask]]) != behaviour_id([[mask.view(9, 2)]])
    assert behaviour_id([[mask], [other]]) != behaviour_id([[other], [mask]])
