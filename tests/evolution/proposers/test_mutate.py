"""The mutation proposer: every proposal parses, keeps the contract, stays inside its interface and reads well; and the
same seed makes the same proposals, whatever happened in between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecraft.errors import UnknownNameError
from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import LEVELS, Interface, Level, check_edit
from cachecraft.evolution.population import Population
from cachecraft.evolution.program import program_id
from cachecraft.evolution.proposers.bandit import Bandit
from cachecraft.evolution.proposers.choices import ALLOCATION_OPERATORS, SELECTOR_OPERATORS, crossover, fresh
from cachecraft.evolution.proposers.form import Form, read_form
from cachecraft.evolution.proposers.grammar import LARGEST_SUM, Grammar
from cachecraft.evolution.proposers.mutate import LONGEST, MutateProposer, operators_of, seed_proposals
from cachecraft.evolution.proposers.operators import sum_of
from cachecraft.evolution.proposers.shaping import SCORE_OPERATORS
from cachecraft.evolution.proposers.writing import write_form
from cachecraft.evolution.records import Candidate, Fitness, Outcome, PopulationSettings, Proposal
from cachecraft.policy.check import check_policy, synthetic_layer
from cachecraft.policy.contract import Policy, builtin_policies, load_policy
from cachecraft.policy.decide import decide

OPERATORS = SCORE_OPERATORS | SELECTOR_OPERATORS | ALLOCATION_OPERATORS | {"fresh": fresh}
PARENTS = [name for name in builtin_policies() if name in ("frc", "h2o", "keydiff", "snapkv", "vk_ratio")]
ALL = Interface("scorer+selector")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


def loaded(source: str, folder: Path) -> Policy:
    path = folder / f"p{program_id(source)}.py"
    path.write_text(source)
    return load_policy(str(path))


def decides(source: str, folder: Path) -> None:
    """A short form of the contract's check: it decides on small layers at several budgets."""
    policy = loaded(source, folder)
    for tokens in (1, 2, 40):
        layer = synthetic_layer(tokens, strict=True)
        decide(policy, layer, [torch.tensor([1, 1]), torch.tensor([tokens, max(1, tokens // 3)])])


def parent(seed: int) -> Form:
    """A program of the grammar, or a built-in policy."""
    draw = random.Random(seed)
    if draw.random() < 0.3:
        return read_form(load_policy(draw.choice(PARENTS)).source)
    return read_form(write_form(Grammar(ALL).program(draw)))


@pytest.mark.parametrize("name", sorted(OPERATORS))
@settings(max_examples=2)
@given(seed=st.integers(0, 10**6))
def test_every_operator_makes_a_program_that_keeps_the_contract_and_its_interface(
    folder: Path, seed: int, name: str
) -> None:
    level: Level = "allocation" if name in ALLOCATION_OPERATORS else "scorer+selector"
    form = parent(seed)
    change = OPERATORS[name](random.Random(seed), form, Grammar(Interface(level)))
    if change is None:
        return
    child = write_form(change[0])
    assert change[1] and "\n" not in change[1]
    assert check_edit(write_form(form), child, Interface(level)) == []
    assert len(sum_of(change[0]).terms) <= max(LARGEST_SUM, len(sum_of(form).terms))
    decides(child, folder)


@settings(max_examples=8)
@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_crossover_takes_terms_of_both_and_protects_the_first_parents_rest(folder: Path, one: int, two: int) -> None:
    first, second = parent(one), parent(two)
    change = crossover(random.Random(one), first, second, Grammar(ALL))
    if change is None:
        return
    child = write_form(change[0])
    assert check_edit(write_form(first), child, Interface("scorer")) == []
    assert 2 <= len(sum_of(change[0]).terms) <= LARGEST_SUM
    decides(child, folder)


@settings(max_examples=4)
@given(st.integers(0, 10**6))
def test_grammar_programs_pass_the_whole_check_of_the_contract(folder: Path, seed: int) -> None:
    assert check_policy(loaded(write_form(Grammar(ALL).program(random.Random(seed))), folder)) == []


@settings(max_examples=8)
@given(st.integers(0, 10**6))
def test_a_restricted_grammar_uses_only_what_it_is_offered(folder: Path, seed: int) -> None:
    interface = Interface("scorer", frozenset({"keys", "values"}))
    source = write_form(Grammar(interface).program(random.Random(seed)))
    assert set(loaded(source, folder).needs) <= {"keys", "values", "kv_heads", "tokens", "heads", "head_dim"}
    bare = "def score_tokens(f):\n    return f.keys.norm(dim=-1)\n"
    assert check_edit(bare, source, interface) == []


def test_a_grammar_without_features_is_empty() -> None:
    assert Grammar(Interface("scorer", frozenset())).empty
    assert not Grammar(Interface("scorer", frozenset({"keys"}))).empty


def evaluated(population: Population, candidates: list[Candidate]) -> list[Candidate]:
    """Made-up outcomes that depend on the program alone."""
    for each in candidates:
        draw = random.Random(each.program)
        population.note_behaviour(each.number, each.program, Behaviour(draw.random(), draw.random(), "O(T)"))
        population.record(each.number, Outcome("ok", "", "full", Fitness(draw.random(), 8, 0.3)))
    return population.close()


def searched(folder: Path, interface: Interface, generations: int, reopen: bool, seed: int = 0) -> list[Candidate]:
    population = Population(folder, PopulationSettings(seed=seed))
    proposer = MutateProposer(interface)
    for generation in range(generations + 1):
        batch = proposer.ask(population, 6) if generation else seed_proposals(interface, seed, grammar_programs=3)
        for each in evaluated(population, population.begin(batch, interface)):
            proposer.tell(each)
        if reopen:
            population.close_database()
            population = Population(folder)
            proposer = MutateProposer(interface)
            for each in population.told():
                proposer.tell(each)
    found = population.told()
    population.close_database()
    return found


def test_the_same_seed_makes_the_same_run_resumed_or_not_and_another_seed_another(tmp_path: Path) -> None:
    whole = searched(tmp_path / "a", ALL, 2, reopen=False)
    assert whole == searched(tmp_path / "b", ALL, 2, reopen=True)
    other = searched(tmp_path / "c", ALL, 1, reopen=False, seed=1)
    assert {each.program for each in whole} != {each.program for each in other}


@pytest.mark.parametrize("level", LEVELS)
def test_proposals_are_new_short_allowed_and_keep_the_contract_at_every_level(
    tmp_path: Path, folder: Path, level: Level
) -> None:
    interface = Interface(level)
    found = searched(tmp_path, interface, 2, reopen=False)
    assert len({each.program for each in found}) == len(found), "no program twice"
    by_number = {each.number: each for each in found}
    made = [each for each in found if each.proposal.proposer == "mutate"]
    assert len(made) == 12
    for each in made:
        assert each.proposal.operator in operators_of(interface)
        assert each.proposal.note
        if each.proposal.parents:
            first = by_number[each.proposal.parents[0]]
            assert check_edit(first.source, each.source, interface) == []
            assert len(each.source.splitlines()) <= max(LONGEST, len(first.source.splitlines()))
        decides(each.source, folder)


def test_seeds_are_the_built_in_policies_as_they_are_and_programs_of_the_grammar() -> None:
    found = seed_proposals(ALL, 0, grammar_programs=4)
    sources = [each.source for each in found]
    assert load_policy("keydiff").source in sources
    assert load_policy("random").source not in sources
    assert sum(each.note == "Drew a program from the grammar" for each in found) == 4
    assert any(each.note.startswith("Single signal") for each in found)
    assert all(each.parents == () and each.proposer == "seed" for each in found)
    assert len({program_id(source) for source in sources}) == len(sources)
    assert found == seed_proposals(ALL, 0, grammar_programs=4)
    keys = seed_proposals(Interface("scorer", frozenset({"keys"})), 0, grammar_programs=1)
    assert {"Built-in policy keydiff", "Built-in policy knorm"} <= {each.note for each in keys}
    assert all("values" not in each.note for each in keys)


def test_a_proposer_of_fresh_programs_only_samples_the_grammar(tmp_path: Path) -> None:
    with Population(tmp_path, PopulationSettings()) as population:
        proposer = MutateProposer(ALL, ("fresh",))
        batch = proposer.ask(population, 5)
        assert len(batch) == 5
        assert {each.operator for each in batch} == {"fresh"}
        evaluated(population, population.begin(batch, ALL))
        assert all(each.operator == "fresh" and each.parents == () for each in proposer.ask(population, 5))
    with pytest.raises(UnknownNameError, match="operator at the level 'constants'"):
        MutateProposer(Interface("constants"), ("fresh",))


def test_where_nothing_new_can_be_made_nothing_is_proposed(tmp_path: Path) -> None:
    interface = Interface("constants")
    with Population(tmp_path, PopulationSettings()) as population:
        assert MutateProposer(interface).ask(population, 3) == []
        source = "def score_tokens(f):\n    return f.keys.norm(dim=-1)\n"
        evaluated(population, population.begin([Proposal(source)], interface))
        assert MutateProposer(interface).ask(population, 3) == []


def test_programs_that_cannot_be_bred_are_passed_over(tmp_path: Path) -> None:
    odd = "def _ranked(a, b):\n    return a\n\ndef score_tokens(f):\n    return _ranked(f.keys, 1).norm(dim=-1)\n"
    with Population(tmp_path, PopulationSettings()) as population:
        evaluated(population, population.begin([Proposal(odd)], ALL))
        batch = MutateProposer(ALL).ask(population, 4)
        assert {each.operator for each in batch} <= {"numbers", "fresh"}


def test_a_bandit_prefers_what_improves_tries_the_unknown_and_forgets() -> None:
    draw = random.Random(0)
    bandit = Bandit(("good", "bad"))
    assert {bandit.choose(draw, ("good", "bad")) for _ in range(50)} == {"good", "bad"}
    for _ in range(60):
        bandit.tell("good", True)
        bandit.tell("bad", False)
    chosen = [bandit.choose(draw, ("good", "bad", "new")) for _ in range(300)]
    assert chosen.count("good") > 200 and chosen.count("new") > 0 and chosen.count("bad") < 10
    for _ in range(300):
        bandit.tell("good", False)
    assert bandit.rates()["good"] < 0.1 < bandit.rates()["bad"]
