"""Discover policies: search, choose, prove on items that the search never saw, and write what was found as files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cachecraft import api
from cachecraft.errors import PolicyLoadError, RunError
from cachecraft.evaluation.rows import clusters_of
from cachecraft.evaluation.settings import Progress, versions
from cachecraft.evaluation.statistics import Estimate
from cachecraft.evaluation.store import open_run, read_run
from cachecraft.evolution.admission import static_stage
from cachecraft.evolution.decompose import Worth, means, worth
from cachecraft.evolution.lineage import export, with_provenance
from cachecraft.evolution.llm.recorded import has_replies
from cachecraft.evolution.loop import SearchProgress, baseline, leaders, search
from cachecraft.evolution.population import Population
from cachecraft.evolution.proposers.assembly import Proposing, proposing
from cachecraft.evolution.records import Candidate
from cachecraft.evolution.replaying import check_apart
from cachecraft.evolution.settings import DiscoverySettings, SearchBudget
from cachecraft.models import LoadedModel, load
from cachecraft.policy.contract import builtin_policies, load_policy
from cachecraft.sandbox import Limits, Program, Sandbox

# All that decides what a search does; only limits of time and workers may change between its commands.
IDENTITY = (
    *("command", "models", "revisions", "dtypes", "tasks", "ratios", "length", "seed", "level", "features", "islands"),
    *("quick", "items", "batch", "again", "most", "validation", "start", "without"),
    *("proposer", "diagnosis"),
)
# What decides the replies of language models; free until there are some.
ASKING = ("llm_models", "llm_prices", "temperature", "reply_tokens", "prompt_characters", "prompts")
SHIPPED = 3  # policies that are written as files
SCORERS = ("keydiff", "value_diversity", "snapkv", "random")  # crossed with what was found
SELECTORS = ("tokens", "chunks:8", "chunks:20", "pages:16")


@dataclass(frozen=True)
class Discovery:
    """What a discovery found.

    Attributes:
        folder: The run's folder.
        files: The best policies, best first.
        best: The best candidate.
        baseline: Name and fitness of the best built-in policy in the search.
        tests: For each model the evaluation of the best policies and all baselines on the test split.
    """

    folder: Path
    files: tuple[Path, ...]
    best: Candidate
    baseline: tuple[str, float] | None
    tests: tuple[api.Evaluation, ...]


def discover(
    models: Sequence[str | LoadedModel] = ("smollm2",),
    *,
    settings: DiscoverySettings,
    budget: SearchBudget,
    run: str | Path = "runs/discover",
    proposing_by: Proposing | None = None,
    diagnosis: bool = True,
    workers: int | None = None,
    test_samples: int = 12,
    test_scoring: Sequence[str] = ("answer",),
    force: bool = False,
    progress: Callable[[SearchProgress], None] = lambda _: None,
    test_progress: Callable[[Progress], None] = lambda _: None,
    say: Callable[[str], None] = lambda _: None,
) -> Discovery:
    """Search for a policy better than the known ones; what the run's folder holds already is gone on from.

    Args:
        models: Built-in names, hub ids, folders, GGUF files or loaded models; fitness is the mean over them.
        settings: What to search for and on what.
        budget: When the search ends.
        run: The run's folder.
        proposing_by: Where programs come from; mutations by default.
        diagnosis: Whether plateaus and hacks are named and acted upon.
        workers: Processes that run candidates at a time, by default as many as the model has CPU threads; the result
            does not depend on it.
        test_samples: Items of each task of the test split; 0 leaves the test out.
        test_scoring: How the test is scored.
        force: Accept model classes that CacheCraft was not tested with.
        progress: Called as candidates are evaluated.
        test_progress: Called as items of the test are.
        say: Told in a line when the search waits for an endpoint.

    Returns:
        The best policies as files, and how they fare on the test split beside all built-in ones.

    Raises:
        CacheCraftError: Something asked for means nothing, or the folder belongs to another search.
    """
    folder = Path(run)
    how = proposing_by or Proposing()
    check_apart(how.replay, folder)
    loaded = [load(model) if isinstance(model, str) else model for model in models]
    subjects = [api.subject_of(each, force=force) for each in loaded]
    record = settings.record() | {
        "models": [each.name for each in subjects],
        "revisions": [each.revision for each in subjects],
        "dtypes": [each.dtype for each in subjects],
        "versions": versions(),
    }
    record |= how.record() | ({} if diagnosis else {"diagnosis": "off"})
    if has_replies(folder):
        open_run(folder, record, (*IDENTITY, *ASKING)).close()
    else:
        open_run(folder, record, IDENTITY, replaced=ASKING).close()
    with (
        proposing(how, folder, say) as (make, calls),
        search(
            subjects,
            settings,
            budget,
            folder,
            make=make,
            calls=calls,
            diagnosis=diagnosis,
            workers=workers or torch.get_num_threads(),
            progress=progress,
        ) as population,
    ):
        files, best = _export(population, folder, record)
        line = baseline(population)
        tasks = population.tasks()
    tests = []
    if test_samples:
        for number, each in enumerate(loaded):
            tests.append(
                api.evaluate(
                    each,
                    policies=[*map(str, files), *(name for name in builtin_policies() if not load_policy(name).base)],
                    ratios=settings.ratios,
                    tasks=tasks,
                    run=folder / f"test-{number}",
                    length=settings.length,
                    samples=test_samples,
                    scoring=test_scoring,
                    seed=settings.seed,
                    force=force,
                    progress=test_progress,
                )
            )
    return Discovery(folder, files, best, line, tuple(tests))


def starting_from(specs: Sequence[str], settings: DiscoverySettings) -> DiscoverySettings:
    """The settings with policies to begin with.

    Args:
        specs: Names of built-in policies, or policy files.
        settings: The others.

    Raises:
        CacheCraftError: There is no such policy, it wraps another, or it breaks the contract; says how.
    """
    start = []
    with Sandbox(Limits(seconds=settings.seconds)) as sandbox:
        for spec in specs:
            policy = load_policy(spec, run=False)
            if policy.base is not None or policy.selector is not None or ":" in policy.name:
                raise PolicyLoadError(f"A search cannot start from {spec}: give a file or a name, without parameters.")
            program = Program(policy.name, policy.source)
            verdict = static_stage(program)
            verdict = sandbox.check(program) if verdict.ok else verdict
            if not verdict.ok:
                raise PolicyLoadError(f"A search cannot start from {spec}: {verdict.reason}")
            start.append((policy.name, policy.source))
    return replace(settings, start=tuple(start))


def _export(population: Population, folder: Path, record: dict[str, Any]) -> tuple[tuple[Path, ...], Candidate]:
    """Write the best candidates as policy files that say where they come from."""
    chosen = list(leaders(population, SHIPPED))
    if not chosen:
        raise RunError(f"The search in {folder} found no policy that works; give it a larger --budget.")
    files = []
    for candidate in chosen:
        assert candidate.fitness is not None
        provenance = [
            ("run", f"{folder}, candidate {candidate.name}"),
            ("parents", ", ".join(population.candidates[n].name for n in candidate.proposal.parents) or "none"),
            ("made by", f"{candidate.proposal.proposer}: {candidate.proposal.operator}"),
            ("seed", str(record["seed"])),
            ("models", ", ".join(record["models"])),
            ("searched on", f"{', '.join(population.tasks())} at {record['length']} tokens"),
            ("fitness", f"{candidate.fitness.mean:.4f} recovered likelihood over {candidate.fitness.items} items"),
        ]
        path = folder / "policies" / f"{candidate.name}.py"
        files.append(export(path, with_provenance(candidate.source, provenance), overwrite=True))
    return tuple(files), chosen[0]


def open_discovery(run: str | Path) -> Population:
    """The population of a run's folder, to read.

    Raises:
        RunError: It holds no discovery.
    """
    return Population(Path(run))


@dataclass(frozen=True)
class Decomposition:
    """Scorers crossed with selectors.

    Attributes:
        scores: By scorer and selector, the mean of exp of the mean log-likelihood, in points of 100.
        worths: What each side brings against random scores and choosing single tokens, in points.
        items: Items of each pair.
    """

    scores: dict[tuple[str, str], Estimate]
    worths: tuple[Worth, ...]
    items: int


def decompose(
    run: str | Path,
    model: str | LoadedModel | None = None,
    *,
    samples: int = 6,
    ratio: float | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Decomposition:
    """Cross the best policy's scorer and known ones with selectors, on validation items.

    Args:
        run: Folder of a discovery.
        model: The model; by default the run's first.
        samples: Items of each task.
        ratio: Share to evict; by default the run's largest.
        progress: Called after each item.

    Raises:
        RunError: The folder holds no discovery that found anything.
    """
    folder = Path(run)
    store = read_run(folder)
    record = store.settings
    store.close()
    if record.get("command") != "discover":
        raise RunError(f"{folder} holds no discovery; give the folder of a `cachecraft discover`.")
    with open_discovery(folder) as population:
        files, best = _export(population, folder, record)
        tasks = population.tasks()
    loaded = load(model or record["models"][0]) if not isinstance(model, LoadedModel) else model
    grid: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    clusters: dict[str, str] = {}
    for selector in SELECTORS:
        found = api.evaluate(
            loaded,
            policies=[str(files[0]), *SCORERS],
            ratios=[ratio or max(record["ratios"])],
            tasks=tasks,
            run=folder / "decompose",
            length=record["length"],
            samples=samples,
            scoring=["likelihood"],
            split="validation",
            seed=record["seed"],
            selector=selector,
            references=[],
            progress=progress,
        )
        clusters |= clusters_of(found.results)
        for result in found.results:
            if result.value is not None:
                pair = result.label.partition(" [")[0], selector
                grid.setdefault(pair, {}).setdefault(result.task, {})[result.item] = 100 * math.exp(result.value)
    told = worth(grid, scorer="random", selector="tokens", clusters=clusters)
    return Decomposition(
        means(grid, clusters), tuple(told), sum(len(items) for items in grid[best.name, "tokens"].values())
    )
