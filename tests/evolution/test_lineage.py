"""Lineage and export: ancestors with diffs, files that load and say where they come from, nothing overwritten."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachecraft.errors import RunError
from cachecraft.evolution.behaviour import Behaviour
from cachecraft.evolution.interface import Interface
from cachecraft.evolution.lineage import export, lineage, provenance, with_provenance
from cachecraft.evolution.population import Population
from cachecraft.evolution.program import program_id
from cachecraft.evolution.records import Fitness, Outcome, PopulationSettings, Proposal, Score
from cachecraft.policy.contract import builtin_policies, load_policy

PROVENANCE = [("run", 'runs/"d1"\\x'), ("parents", "c0001, c0002"), ("score", "0.53 over 48 items, " + "long " * 40)]


def program(number: int) -> str:
    return f'"""Norm, weighed."""\n\n\ndef score_tokens(f):\n    return {number} * f.keys.norm(dim=-1)\n'


@pytest.fixture
def family(tmp_path: Path) -> Population:
    """1 and 2 are seeds, 3 is a child of 1, 4 of 3 and 2, 5 of 2."""
    population = Population(tmp_path / "run", PopulationSettings())
    for batch in ([(1, ()), (2, ())], [(3, (1,))], [(4, (3, 2)), (5, (2,))]):
        population.begin([Proposal(program(n), parents, "numbers", f"Set {n}") for n, parents in batch], Interface())
        for number, _ in batch:
            population.note_behaviour(number, str(number), Behaviour(0.5, 0.5, "O(T)"))
            population.record(number, Outcome("ok", "", "full", Fitness(number / 10, 8, 0.1)))
        population.close()
    return population


def test_a_lineage_holds_every_ancestor_once_the_youngest_first(family: Population) -> None:
    steps = lineage(family.candidates, 4)
    assert [step.candidate.number for step in steps] == [4, 3, 2, 1]
    assert [step.parent.number if step.parent else None for step in steps] == [3, 1, None, None]
    assert [step.candidate.fitness.mean if step.candidate.fitness else None for step in steps] == [0.4, 0.3, 0.2, 0.1]
    with pytest.raises(RunError, match="There is no candidate 9"):
        lineage(family.candidates, 9)


def test_a_diff_names_both_and_shows_what_changed(family: Population) -> None:
    text = lineage(family.candidates, 3)[0].diff
    assert text.startswith("--- c0001\n+++ c0003\n")
    assert "-    return 1 * f.keys.norm(dim=-1)\n+    return 3 * f.keys.norm(dim=-1)" in text
    assert lineage(family.candidates, 1)[0].diff == ""


@pytest.mark.parametrize("name", builtin_policies())
def test_an_exported_policy_is_the_same_program_and_keeps_its_first_line(name: str, tmp_path: Path) -> None:
    source = (Path(__file__).parents[2] / "src" / "cachecraft" / "policies" / f"{name}.py").read_text()
    text = with_provenance(source, PROVENANCE)
    assert program_id(text) == program_id(source)
    assert text.splitlines()[0].startswith(source.splitlines()[0].rstrip('"'))
    assert "Found by CacheCraft:" in text and "  parents  c0001, c0002" in text
    assert max(map(len, text.splitlines())) <= 120
    if "base" not in source:
        path = export(tmp_path / "new" / f"{name}.py", text)
        assert load_policy(str(path)).summary == load_policy(name).summary


def test_the_provenance_tells_run_parents_seed_models_and_scores(family: Population) -> None:
    scores = [Score("quick", "m", "ruler:vt", "0.75", 0.9, 2), Score("full", "m", "ruler:vt", "0.75", 0.2, 8)]
    scores.append(Score("full", "m", "ruler:vt", "0.88", 0.5, 4))
    found = dict(provenance(family.candidates[4], scores, run="runs/d1", seed=7, models=("smollm2", "qwen")))
    assert found["run"] == "runs/d1, seed 7"
    assert found["candidate"] == "c0004, generation 2, seed"
    assert found["parents"] == "c0003, c0002"
    assert found["models"] == "smollm2, qwen"
    assert found["fitness"] == "0.4000 over 8 items"
    assert found["ruler:vt"] == "0.3000 over 12 measurements at 0.75, 0.88"
    assert dict(provenance(family.candidates[1], [], run="r", seed=0, models=["m"]))["parents"] == "none"


def test_a_program_without_a_docstring_gets_one() -> None:
    bare = "def score_tokens(f):\n    return f.keys.norm(dim=-1)\n"
    text = with_provenance(bare, [("run", "d1")])
    assert text.startswith(
        '"""A discovered eviction policy.\n\nFound by CacheCraft:\n  run  d1\n"""\n\ndef score_tokens'
    )
    assert program_id(text) == program_id(bare)
    assert with_provenance('"""One."""; import math\n' + bare, []).splitlines()[-3].endswith("import math")


def test_a_users_file_is_never_overwritten_silently(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("# precious\n")
    with pytest.raises(RunError, match=r"mine\.py exists and was not overwritten"):
        export(path, "other\n")
    assert path.read_text() == "# precious\n"
    assert export(path, "# precious\n") == path, "the same contents are no harm"
    assert export(path, "other\n", overwrite=True).read_text() == "other\n"
    assert list(tmp_path.iterdir()) == [path], "nothing else is left behind"


def test_a_place_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(RunError, match="could not be written"):
        export(tmp_path / "file" / "policy.py", "x")
