"""What proposing and diagnosis bring: mutations with and without diagnosis, and random programs of the same grammar.

Each way searches with the same number of candidates on the same items, once for each seed, from the same seed programs.
The best of each search is then measured on validation items that no search saw, beside the best built-in policy of
the seed's search. Prints a table as Markdown; runs are kept in runs/proposers, and a repeated call goes on where an
interrupted one stopped.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench_report import RUNS, BenchReport
from subject import add_model_options

from cachecraft import api
from cachecraft.evaluation.store import open_run
from cachecraft.evolution.lineage import export
from cachecraft.evolution.loop import baseline, leaders, search
from cachecraft.evolution.proposers.mutate import MutateProposer, mutations
from cachecraft.evolution.proposers.protocol import Conduct, Proposer
from cachecraft.evolution.remedies import read_diagnoses
from cachecraft.evolution.settings import DiscoverySettings, SearchBudget
from cachecraft.models import LoadedModel, load
from cachecraft.tasks.registry import load_tasks
from cachecraft.terminal import one_sentence

TASKS = "ruler:niah_single_1,ruler:niah_single_2,ruler:niah_multikey_1,ruler:niah_multivalue"


@dataclass(frozen=True)
class Way:
    """A way to search: who proposes, and whether the search diagnoses itself."""

    name: str
    make: Callable[[Conduct], Proposer]
    diagnosis: bool


def random_programs(conduct: Conduct) -> Proposer:
    """Draws from the grammar, whatever was found before."""
    return MutateProposer(conduct.interface, ("fresh",))


WAYS = (
    Way("mutate", mutations, True),
    Way("mutate, no diagnosis", mutations, False),
    Way("random programs", random_programs, False),
)


@dataclass(frozen=True)
class Found:
    """What one search came to.

    Attributes:
        searched: The best's share of the way from random to full, over the items that it was searched on.
        fresh: Its mean likelihood of the reference answer on validation items, in points of 100.
        known: The same of the best built-in policy in the search.
        counts: Candidates that were measured, and all.
        minutes: Time of the search.
        diagnoses: Diagnoses, and how many of their actions were kept.
    """

    searched: float
    fresh: float
    known: float
    counts: tuple[int, int]
    minutes: float
    diagnoses: tuple[int, int]


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--budget", type=int, default=240, help="candidates of a search (default: %(default)s)")
    parser.add_argument("--seeds", default="0,1,2", help="default: %(default)s")
    parser.add_argument("--tasks", default=TASKS, help="default: %(default)s")
    parser.add_argument("--length", type=int, default=1024, help="tokens of an item (default: %(default)s)")
    parser.add_argument("--level", default="scorer", help="what a search begins with (default: %(default)s)")
    parser.add_argument("--items", type=int, default=3, help="items of each task in a search (default: %(default)s)")
    parser.add_argument("--fresh", type=int, default=12, help="validation items of each task (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=RUNS / "proposers", help="default: runs/proposers")
    return parser.parse_args()


def searched(model: LoadedModel, way: Way, seed: int, options: argparse.Namespace) -> Found:
    """Search, then measure the best on fresh items."""
    settings = DiscoverySettings(
        tasks=tuple(task.name for task in load_tasks(options.tasks.split(","))),
        length=options.length,
        seed=seed,
        items=options.items,
        level=options.level,
    )
    folder = options.runs / f"{way.name.replace(', ', '-').replace(' ', '-')}-{seed}"
    record = settings.record() | {"models": [model.name]}
    open_run(folder, record, tuple(record)).close()  # refuses what was searched otherwise
    budget = SearchBudget(candidates=options.budget)
    with search(
        [api.subject_of(model)], settings, budget, folder, make=way.make, diagnosis=way.diagnosis
    ) as population:
        best, line = next(leaders(population, 1)), baseline(population)
        assert best.fitness is not None
        assert line is not None
        told, minutes, tasks = population.told(), population.seconds / 60, population.tasks()
    file = export(folder / "best.py", best.source, overwrite=True)
    evaluation = api.evaluate(
        model,
        policies=[str(file), line[0]],
        ratios=settings.ratios,
        tasks=tasks,
        run=folder / "fresh",
        length=settings.length,
        samples=options.fresh,
        scoring=["likelihood"],
        split="validation",
        seed=seed,
        references=[],
    )
    fresh: dict[str, list[float]] = {}
    for result in evaluation.results:
        if result.value is not None:
            fresh.setdefault(result.label.partition(" [")[0], []).append(100 * math.exp(result.value))
    means = {name: statistics.fmean(values) for name, values in fresh.items()}
    done = read_diagnoses(folder)
    return Found(
        searched=best.fitness.mean,
        fresh=means.get(file.stem, means[line[0]]),  # a best that is that built-in policy itself is measured once
        known=means[line[0]],
        counts=(sum(each.state == "ok" for each in told), len(told)),
        minutes=minutes,
        diagnoses=(len(done), sum(each.verdict == "kept" for each in done)),
    )


def row(way: str, seed: int, found: Found) -> str:
    """A line of the table."""
    measured, all_ = found.counts
    done, kept = found.diagnoses
    cells = [way, str(seed), f"{found.searched:.3f}", f"{found.fresh:.1f}", f"{found.known:.1f}"]
    cells += [f"{measured} of {all_}", f"{done}, {kept} kept", f"{found.minutes:.0f}"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Run every way with every seed, and print what came of it."""
    options = parse_options()
    model = load(options.model, dtype="float32", device="cpu", threads=options.threads, progress=print)
    report = BenchReport("proposers", vars(options))
    gains: dict[str, list[float]] = {}
    columns = ["way", "seed", "best, in its search", "best, fresh", "best built-in, fresh", "measured", "diagnoses"]
    report.say(f"\n| {' | '.join([*columns, 'minutes'])} |\n|{'---|' * (len(columns) + 1)}")
    for seed in map(int, options.seeds.split(",")):
        for way in WAYS:
            found = searched(model, way, seed, options)
            gains.setdefault(way.name, []).append(found.fresh - found.known)
            report.say(row(way.name, seed, found))
            report.keep(f"{way.name}, seed {seed}", asdict(found))
    report.say("")
    for name, own in gains.items():
        spread = f", from {min(own):+.1f} to {max(own):+.1f}" if len(own) > 1 else ""
        report.say(f"{name}: {statistics.fmean(own):+.1f} points over the best built-in on fresh items{spread}")
    report.close()


if __name__ == "__main__":
    with one_sentence(lambda: "What was measured is kept; the same command goes on from there."):
        main()
