"""What the command line does, as Python functions that take and return ordinary values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from cachecraft.errors import RunError
from cachecraft.evaluation.cells import REFERENCES, Budget, Regime, Scoring
from cachecraft.evaluation.grid import evaluate as evaluate_grid
from cachecraft.evaluation.rows import scoring_of, told_apart
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.settings import Progress, Settings
from cachecraft.evaluation.store import Result, read_evaluation
from cachecraft.models import LoadedModel, load
from cachecraft.reporting.needle_map import export_maps
from cachecraft.reporting.plots import plot_score_against_bytes
from cachecraft.reporting.summary import Summary, length_of, summaries, summarise
from cachecraft.reporting.tables import as_csv, as_json
from cachecraft.runtime.structure import ModelStructure


@dataclass(frozen=True)
class Evaluation:
    """A run's results.

    Attributes:
        folder: The run's folder.
        settings: As in its run.yaml.
        results: One for each item, policy, budget and scoring; programs that share a label bear a short id, too.
        texts: By item id, what the run stores of its prompt.
    """

    folder: Path
    settings: dict[str, Any]
    results: tuple[Result, ...]
    texts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that the results hold, ascending."""
        return tuple(sorted({self.length_of(result) for result in self.results}))

    def length_of(self, result: Result) -> int:
        """The length in tokens that a result's item was made for."""
        return length_of(result, self.settings, self.texts)

    @property
    def scoring(self) -> str:
        """The first of the run's scorings that the results hold."""
        return scoring_of(self.settings, self.results)

    def summary(self, scoring: str | None = None, *, against: str = "", length: int | None = None) -> Summary:
        """Macro averages with intervals, best policy first.

        Args:
            scoring: One that the results hold, or ``"forced_match"`` where they hold likelihoods; when missing, the
                first of the run's that they hold.
            against: A row that all others are compared with, item by item; "" for none.
            length: One of the run's lengths; its shortest unless another is named.

        Raises:
            RunError: Nothing of the scoring, or nothing at all, was measured yet.
        """
        self._require_results()
        chosen = scoring or self.scoring
        wanted = length or self.lengths[0]
        own = [result for result in self.results if self.length_of(result) == wanted]
        return replace(summarise(own, chosen, against=against, skipped=self.settings.get("skipped")), length=wanted)

    def summaries(self, *, against: str = "") -> list[Summary]:
        """A summary for each scoring and length that the results hold; forced matches are told after likelihoods.

        Raises:
            RunError: Nothing was measured yet.
        """
        self._require_results()
        return summaries(self.results, self.settings, self.texts, against=against)

    def _require_results(self) -> None:
        if not self.results:
            raise RunError(f"{self.folder} holds no result yet; run its command again to measure some.")

    def export(self) -> list[Path]:
        """Write table.csv, table.json and, for each scoring, a plot as PNG and SVG into the run's folder."""
        told = self.summaries()
        table, numbers = self.folder / "table.csv", self.folder / "table.json"
        table.write_text(as_csv(told))
        numbers.write_text(as_json(told, self.settings))
        written = [table, numbers]
        for scoring in dict.fromkeys(summary.scoring for summary in told):
            plots = [self.folder / f"score_{scoring}.{ending}" for ending in ("png", "svg")]
            panels = [summary for summary in told if summary.scoring == scoring]
            regime = f"query-{self.settings['regime']}"
            titles = [f"{self.settings['model']}, {summary.length} tokens, {regime}" for summary in panels]
            plot_score_against_bytes(panels, plots, titles=titles)
            written += plots
        return written + export_maps(self.results, self.texts, self.folder)


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
    length: int | Sequence[int] = 1024,
    samples: int = 20,
    limit: int | None = None,
    skip_long: bool = False,
    regime: str = "agnostic",
    scoring: Sequence[str] = ("answer",),
    split: str = "test",
    seed: int = 0,
    selector: str | None = None,
    allocations: Sequence[str] = (),
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
        tasks: Names of tasks or families, or files of tasks of your own (``"my_tasks.jsonl"``).
        run: The run's folder.
        length: Tokens of an item, the generated ones included; several for a sweep over lengths.
        samples: Items per task.
        limit: At most so many items per task, instead of exactly `samples`.
        skip_long: Leave out benchmark items that are longer than the length, instead of cutting or refusing them.
        regime: ``"agnostic"``: the context is compressed before the question is seen; ``"aware"``: with it.
        scoring: Any of ``"answer"``, ``"likelihood"``, ``"fidelity"``.
        split: ``"search"``, ``"validation"`` or ``"test"``; ``"all"`` for every item of a benchmark's files.
        seed: Base seed of the items.
        selector: Replaces every policy's own, for example ``"chunks:20"``.
        allocations: Each replaces every policy's own division of the budget and makes a row of its own: ``"uniform"``,
            ``"pyramid"``, ``"reversed_pyramid"``, ``"adaptive"``, ``"global"`` or a budgets file.
        references: Any of ``"full"``, ``"hindsight"``, ``"random"``.
        essays: Text files for essay haystacks.
        data: Files of questions and benchmarks, folders that hold some, or hub data sets; see docs/tasks.md.
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
        length=length if isinstance(length, int) else tuple(length),
        samples=samples,
        limit=limit,
        skip_long=skip_long,
        regime=cast(Regime, regime),
        scoring=tuple(cast(Scoring, each) for each in scoring),
        split=split,
        seed=seed,
        selector=selector,
        allocations=tuple(map(str, allocations)),
        references=tuple(references),
        essays=tuple(essays),
        data=tuple(map(str, data)),
        ruler_compat=ruler_compat,
    )
    loaded = load(model) if isinstance(model, str) else model
    store, ids = evaluate_grid(subject_of(loaded, force=force), settings, Path(run), progress=progress, trust=trust)
    try:
        return Evaluation(store.folder, store.settings, tuple(told_apart(store.results(ids))), store.item_texts())
    finally:
        store.close()


def open_evaluation(run: str | Path) -> Evaluation:
    """Everything that a run's folder holds.

    Raises:
        RunError: It is not the folder of an evaluation.
    """
    store = read_evaluation(Path(run))
    try:
        return Evaluation(store.folder, store.settings, tuple(told_apart(store.results())), store.item_texts())
    finally:
        store.close()
