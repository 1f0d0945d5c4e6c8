"""Taking a policy apart and writing it again: the same scores, readable text, nothing that is not used."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cachecraft.evolution.interface import Interface
from cachecraft.evolution.program import program_id
from cachecraft.evolution.proposers.form import Form, parse, read_form
from cachecraft.evolution.proposers.grammar import Grammar
from cachecraft.evolution.proposers.terms import join, signals, split
from cachecraft.evolution.proposers.vocabulary import clashes, described
from cachecraft.evolution.proposers.writing import WIDTH, write_form
from cachecraft.policy.check import synthetic_layer
from cachecraft.policy.contract import Policy, builtin_policies, load_policy
from cachecraft.policy.decide import score
from cachecraft.policy.source import read_source

BREEDABLE = [
    name
    for name in builtin_policies()
    if not read_source((Path(__file__).parents[3] / f"src/cachecraft/policies/{name}.py").read_text(), name).wraps
]


def loaded(source: str, folder: Path) -> Policy:
    path = folder / f"{program_id(source)}.py"
    path.write_text(source)
    return load_policy(str(path))


def scores(policy: Policy) -> torch.Tensor:
    layer = synthetic_layer(65)
    return score(policy, layer, torch.tensor([20, 20])).scores


def rewritten(source: str) -> str:
    """The whole scorer written anew, not copied."""
    form = read_form(source)
    return write_form(form.with_score(form.score))


@pytest.mark.parametrize("name", BREEDABLE)
def test_a_built_in_policy_scores_the_same_when_it_is_written_anew(name: str, tmp_path: Path) -> None:
    policy = load_policy(name)
    again = loaded(rewritten(policy.source), tmp_path)
    assert torch.equal(scores(policy), scores(again))
    assert dict(policy.parameters) == dict(again.parameters)


@pytest.mark.parametrize("name", BREEDABLE)
def test_an_untouched_scorer_keeps_its_text(name: str) -> None:
    source = load_policy(name).source
    start = source.index("def score_tokens")
    assert source[start:].split("\n\n\n")[0].rstrip() in write_form(read_form(source))
    assert program_id(write_form(read_form(source))) == program_id(source)


@given(st.integers(0, 10**6))
def test_what_the_grammar_writes_is_read_back_as_it_was(seed: int) -> None:
    source = write_form(Grammar(Interface()).program(random.Random(seed)))
    assert rewritten(source) == source
    assert max(map(len, source.splitlines())) <= WIDTH + 10
    assert "  # noqa" not in source


def test_a_scorer_with_branches_is_kept_whole() -> None:
    form = read_form(load_policy("snapkv").source)
    assert ast.unparse(form.score) == "_snapkv(f, window=window, kernel=kernel)"
    assert "if f.tokens <= window:" in form.helpers["_snapkv"]
    assert "def _snapkv(f: Features, *, window: int, kernel: int) -> Tensor:" in form.helpers["_snapkv"]


def test_intermediate_values_become_one_expression_and_get_their_names_back() -> None:
    source = (
        "def score_tokens(g, *, weight: float = 2.0):\n    norms = g.keys.norm(dim=-1).sqrt()\n"
        "    norms = norms + 1\n    norms *= weight\n    return norms / norms.amax()\n"
    )
    form = read_form(source.replace("    norms *= weight\n", ""))
    assert ast.unparse(form.score) == "(f.keys.norm(dim=-1).sqrt() + 1) / (f.keys.norm(dim=-1).sqrt() + 1).amax()"
    assert "    norms = key_norm.sqrt() + 1\n    return norms / norms.amax()\n" in write_form(
        form.with_score(form.score)
    )
    assert "_parent" in ast.unparse(read_form(source).score), "a change in place keeps its order only as a whole"


@pytest.mark.parametrize(
    "body",
    [
        "    draw = f.generator()\n    return torch.rand(2, 3, generator=draw) + torch.rand(2, 3, generator=draw)",
        "    a = f.keys.clone()\n    a.mul_(2)\n    return a.norm(dim=-1)",
        "    low, high = f.keys.aminmax(dim=-1)\n    return high - low",
        "    return torch.stack([head.norm(dim=-1) for head in f.keys])",
        "    for _ in range(2):\n        a = f.keys\n    return a.norm(dim=-1)",
    ],
)
def test_what_would_not_mean_the_same_in_one_expression_is_kept_whole(body: str) -> None:
    form = read_form(f'"""Odd one: of its kind."""\nimport torch\n\ndef score_tokens(f):\n{body}\n')
    assert ast.unparse(form.score) == "_odd_one(f)"


def test_a_wrapper_and_a_file_without_a_scorer_cannot_be_bred() -> None:
    for source in ("def score_tokens(f, *, base):\n    return base.score(f)\n", "x = 1\n"):
        with pytest.raises(ValueError, match="no score_tokens of its own"):
            read_form(source)


def test_helpers_that_mean_something_else_are_noticed() -> None:
    def form(helper: str) -> Form:
        return read_form(f"{helper}\n\ndef score_tokens(f):\n    return _ranked(f.keys.norm(dim=-1))\n")

    assert not clashes(form("def _ranked(x):\n    return x"))
    assert clashes(form("def _ranked(x, y):\n    return x"))
    assert clashes(form("_ranked = max"))
    assert clashes(form("from torch import ranked as _ranked"))
    assert clashes(form("from torch.nn.functional import softmax as pad"))


@pytest.mark.parametrize(
    ("text", "weights", "around"),
    [
        ("f.a()", [1.0], 0),
        ("-f.a()", [-1.0], 0),
        ("0.5 * _ranked(f.a()) - 0.3 * (f.b() + f.c() * 2)", [0.5, -0.3, -0.6], 0),
        ("-0.5 * f.a() * f.b() + w * f.c()", [-0.5, 0.7], 0),
        ("_smoothed(f.a() - f.b(), 5)", [1.0, -1.0], 1),
        ("_shared(_peaked(0.2 * f.a() - f.b(), 5), 0.5)", [0.2, -1.0], 2),
        ("_smoothed(f.a(), 5)", [1.0], 0),
        ("3 * -(f.a() - f.b())", [-3.0, 3.0], 0),
    ],
)
def test_a_score_comes_apart_into_weighted_terms_and_goes_together_again(
    text: str, weights: list[float], around: int
) -> None:
    found = split(parse(text), {"w": 0.7})
    assert [term.weight for term in found.terms] == pytest.approx(weights)
    assert len(found.around) == around
    again = split(join(found), {})
    assert sorted(term.weight for term in again.terms) == pytest.approx(
        sorted(weights) if len(weights) > 1 else weights
    )


def test_signals_are_what_is_left_without_wrappers_products_and_extremes() -> None:
    text = "torch.maximum(_ranked(_smoothed(f.a(), 3)), (f.layer + 1) / f.layers * _ranked(f.b() * f.c()))"
    assert [ast.unparse(each) for each in signals(parse(text))] == ["f.a()", "f.b()", "f.c()"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("f.values.norm(dim=-1)", "norm of values"),
        (
            "0.4 * _ranked(_novelty(f.keys, 12)) - 0.2 * _ranked(_smoothed(f.keys.norm(dim=-1), 5))",
            "weighted ranks: novelty of keys, less smoothed norm of keys",
        ),
        ("-_recency(f) * _ranked(g(f))", "minus recency times g"),
        ("torch.minimum(_recency(f), _output_norm(f))", "the smaller of recency and length of the value's output"),
        ("1 - f.layer / f.layers", "shallowness"),
        ("f.keys[..., 0]", "another signal"),
    ],
)
def test_scores_are_described_without_numbers(text: str, words: str) -> None:
    assert described(parse(text), {}) == words
