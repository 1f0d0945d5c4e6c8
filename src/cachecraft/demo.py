"""The demonstration: which tasks can the model do, a short discovery, and a table of what was found beside the known.

Small on purpose: everything fits into minutes on two cores. What it finds is a taste of a discovery, not its result.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cachecraft import api
from cachecraft.discovery import discover, starting_from
from cachecraft.errors import RunError
from cachecraft.evaluation.settings import Progress
from cachecraft.evolution.loop import SearchProgress
from cachecraft.evolution.settings import DiscoverySettings, SearchBudget
from cachecraft.models import LoadedModel

POLICIES = ("craft", "streaming_llm", "knorm", "keydiff", "value_diversity", "vk_ratio", "snapkv", "tova")
RATIOS = (0.5, 0.75, 0.88)
TASKS = ("ruler:niah_single_1", "ruler:niah_single_2", "ruler:niah_multikey_1", "ruler:niah_multivalue")
ABLE = 0.5  # full-cache score from which a task is used
# The discovery begins with a few known policies, and without craft: it shall find something itself.
START = ("keydiff", "value_diversity", "vnorm", "vk_ratio", "knorm", "streaming_llm", "snapkv", "tova")
SEARCHED = 2  # tasks that the discovery is measured on: the last of the able ones, which have an essay as haystack


def full_scores(
    model: LoadedModel, run: Path, samples: int = 2, progress: Callable[[Progress], None] = lambda _: None
) -> dict[str, float]:
    """The full-cache score of every task of the demo, on validation items.

    Raises:
        RunError: The model can do none.
    """
    probe = api.evaluate(
        model,
        policies=[],
        ratios=[0.0],
        tasks=TASKS,
        run=run / "eligible",
        samples=samples,
        split="validation",
        references=["full"],
        progress=progress,
    )
    scores = probe.summary().rows[0].cells["0"].by_task
    if max(scores.values()) < ABLE:
        raise RunError("The model can do none of the demo's tasks, so there is nothing to compare on.")
    return scores


def short_discovery(
    model: LoadedModel,
    run: Path,
    tasks: list[str],
    candidates: int,
    progress: Callable[[SearchProgress], None] = lambda _: None,
) -> Path:
    """Search over a few candidates; the file of the best policy.

    Args:
        model: The model.
        run: The demo's folder; the search gets one inside.
        tasks: That the model can do.
        candidates: How many to try, those that it begins with included.
        progress: Called as candidates are evaluated.
    """
    settings = DiscoverySettings(
        tasks=tuple(tasks[-SEARCHED:]),
        ratios=RATIOS[1:],
        items=1,
        validation=1,
        again=1,
        batch=8,
    )
    settings = starting_from(START, settings)
    budget = SearchBudget(candidates=candidates)
    found = discover(
        [model], settings=settings, budget=budget, run=run / "discovery", test_samples=0, progress=progress
    )
    return found.files[0]


def compare(
    model: LoadedModel,
    run: Path,
    tasks: list[str],
    samples: int,
    found: Path,
    progress: Callable[[Progress], None] = lambda _: None,
) -> api.Evaluation:
    """What was found beside eight known policies, on test items."""
    return api.evaluate(
        model,
        policies=[str(found), *POLICIES],
        ratios=RATIOS,
        tasks=tasks,
        run=run / "comparison",
        samples=samples,
        progress=progress,
    )
