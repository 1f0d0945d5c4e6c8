"""What the command line does, as Python functions that take and return ordinary values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from cachecraft.evaluation.cells import REFERENCES, Budget, Regime, Scoring
from cachecraft.evaluation.grid import evaluate as evaluate_grid
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.settings import Progress, Settings
from cachecraft.evaluation.store import Result, read_run
from cachecraft.models import LoadedModel, load
from cachecraft.reporting.plots import plot_score_against_bytes
from cachecraft.reporting.summary import Summary, summaries, summarise
from cachecraft.reporting.tables import as_csv, as_json
from cachecraft.runtime.structure import ModelStructure


@dataclass(frozen=True)
class Evaluation:
    """A run's results.

    Attributes:
        folder: The run's folder.
        settings: As in its run.yaml.
        results: One for each item, policy, budget and scoring.
    """

    folder: Path
    settings: dict[str, Any]
    results: tuple[Result, ...]

    def summary(self, scoring: str | None = None, *, against: str = "") -> Summary:
        """Macro averages with intervals, best policy first.

        Args:
            scoring: One that the run has, or ``"forced_match"`` where it has likelihoods; its first when missing.
            against: A row that all others are compared with, item by item; "" for none.
        """
        chosen = scoring or self.settings["scoring"][0]
        return summarise(self.results, chosen, against=against, skipped=self.settings.get("skipped"))

    def summaries(self, *, against: str = "") -> list[Summary]:
        """A summary for each scoring that the results hold; what a likelihood saw is told as forced match, too."""
        return summaries(self.results, self.settings, against=against)

    def export(self) -> list[Path]:
        """Write table.csv, table.json and, for each scoring, a plot as PNG and SVG into the run's folder."""
        told = self.summaries()
        table, numbers = self.folder / "table.csv", self.folder / "table.json"
        table.write_text(as_csv(told))
        numbers.write_text(as_json(told, self.settings))
        written = [table, numbers]
        for summary in told:
            plots = [self.folder / f"score_{summary.scoring}.{ending}" for ending in ("png", "svg")]
            title = f"{self.settings['model']}, {self.settings['length']} tokens, query-{self.settings['regime']}"
            plot_score_against_bytes([summary], plots, titles=[title])
            written += plots
        return written


def subject_of(loaded: LoadedModel, *, force: bool = False) -> Subject:
    """A loaded model, ready to be measured.

    Args:
        loaded: What `cachecraft.models.load` returned.
        force: Accept a model class that CacheCraft was not tested with.

    Raises:
        ModelError: The class is not supported.
    """
    structure = ModelStructure.of(loaded.model, force=force)
    return Subject(structure, loaded.tokenizer, loaded.name, loaded.revision, loaded.dtype)


def budgets(ratios: Sequence[float] = (), keeps: Sequence[int] = ()) -> tuple[Budget, ...]:
    """Budgets from shares to evict and numbers of entries to keep.

    Raises:
        BudgetError: A ratio outside [0, 1), or fewer than one entry.
    """
    given = [*(Budget(ratio=ratio) for ratio in ratios), *(Budget(keep=keep) for keep in keeps)]
    return tuple(dict.fromkeys(given))


def evaluate(
    model: str | LoadedModel = "smollm2",
    *,
    policies: Sequence[str],
    ratios: Sequence[float] = (),
    keeps: Sequence[int] = (),
    tasks: Sequence[str] = ("ruler:niah_single_1",),
    run: str | Path = "runs/evaluate",
    length: int = 1024,
    samples: int = 20,
    regime: str = "agnostic",
    scoring: Sequence[str] = ("answer",),
    split: str = "test",
    seed: int = 0,
    selector: str | None = None,
    references: Sequence[str] = REFERENCES,
    essays: Sequence[str] = (),
    data: Sequence[str] = (),
    ruler_compat: bool = False,
    force: bool = False,
    trust: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Evaluation:
    """Measure policies on a model; what the run's folder holds already is not measured again.

    Args:
        model: A built-in name, hub id, folder or GGUF file, or a model loaded by `cachecraft.models.load`.
        policies: Specifications such as ``"snapkv:window=32"`` or ``"mine.py"``.
        ratios: Shares of the cache to evict, each in [0, 1).
        keeps: Numbers of entries to keep per kv head.
        tasks: Names of tasks or families.
        run: The run's folder.
        length: Tokens of an item, the generated ones included.
        samples: Items per task.
        regime: ``"agnostic"``: the context is compressed before the question is seen; ``"aware"``: with it.
        scoring: Any of ``"answer"``, ``"likelihood"``, ``"fidelity"``.
        split: ``"search"``, ``"validation"`` or ``"test"``.
        seed: Base seed of the items.
        selector: Replaces every policy's own, for example ``"chunks:20"``.
        references: Any of ``"full"``, ``"hindsight"``, ``"random"``.
        essays: Text files for essay haystacks.
        data: SQuAD and HotpotQA files for ruler:qa_1 and qa_2, folders that hold some, or ``"hub"``.
        ruler_compat: Seed RULER's tasks as the original does, with the same order of parts in every item.
        force: Accept a model class that CacheCraft was not tested with.
        trust: Run policy files in this process, with its rights; else they run in the sandbox (docs/sandbox.md).
        progress: Called after each item.

    Returns:
        The results of this call.

    Raises:
        CacheCraftError: Something asked for does not exist or means nothing; the message says what to do.
    """
    settings = Settings(
        policies=tuple(policies),
        budgets=budgets(ratios, keeps),
        tasks=tuple(tasks),
        length=length,
        samples=samples,
        regime=cast(Regime, regime),
        scoring=tuple(cast(Scoring, each) for each in scoring),
        split=split,
        seed=seed,
        selector=selector,
        references=tuple(references),
        essays=tuple(essays),
        data=tuple(map(str, data)),
        ruler_compat=ruler_compat,
    )
    loaded = load(model) if isinstance(model, str) else model
    store, ids = evaluate_grid(subject_of(loaded, force=force), settings, Path(run), progress=progress, trust=trust)
    try:
        return Evaluation(store.folder, store.settings, tuple(store.results(ids)))
    finally:
        store.close()


def open_evaluation(run: str | Path) -> Evaluation:
    """Everything that a run's folder holds.

    Raises:
        RunError: It is not a run folder, or holds no results yet.
    """
    store = read_run(Path(run))
    try:
        return Evaluation(store.folder, store.settings, tuple(store.results()))
    finally:
        store.close()
