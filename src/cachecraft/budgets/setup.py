"""What a search of budgets needs before it begins, and what is made of its result: table rows, the record, the file."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cachecraft.budgets.constants import searchable
from cachecraft.budgets.evolkv import EvolKV, Space
from cachecraft.budgets.items import Calibration
from cachecraft.budgets.search import Scorer, explicit
from cachecraft.budgets.settings import EvolKVSettings, SearchTask
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.settings import versions
from cachecraft.policy.allocation import Allocation, apportion
from cachecraft.policy.budgets_file import FORMAT, BudgetsFile, Numbers, Row
from cachecraft.policy.contract import Policy
from cachecraft.policy.variants import variant
from cachecraft.tasks.task import Task

RANDOM_DRAWS = 3
EVOLKV = "evolkv"


@dataclass(frozen=True)
class Setup:
    """A search before it begins."""

    subject: Subject
    policy: Policy
    tasks: Sequence[Task]
    asked: SearchTask
    settings: EvolKVSettings
    folder: Path

    def calibration(self, split: str) -> Calibration:
        """The items of a split; TaskError if there are too few."""
        traces = self.folder / "traces" / split
        ranked = not self.settings.with_params
        shared = self.adaptive_heads
        return Calibration(self.subject, self.tasks, self.asked, split, traces, ranked=ranked, adaptive_heads=shared)

    @property
    def adaptive_heads(self) -> bool:
        """Whether the heads of a layer share its budget by score."""
        return self.settings.heads == "adaptive"

    def begin(self, calibration: Calibration) -> tuple[Scorer, EvolKV]:
        """The scorer and the search at its beginning."""
        structure, asked = self.subject.structure, self.asked
        keeps = [each.keep for each in calibration.items]
        # A context shorter than the target would keep everything; the target itself says what was asked for.
        target = asked.budget.keep if asked.budget.keep is not None else round(sum(keeps) / len(keeps))
        # Items may differ in length, and under a ratio in their targets, which budgets are in proportion to.
        most = max(each.whole(target) for each in calibration.items)
        names = searchable(self.policy) if self.settings.with_params else ()
        layers, heads = len(structure.compressed), structure.kv_heads
        own = heads if self.settings.granularity == "head" else 1
        search = EvolKV(Space(layers, own, most, len(names)), target, self.settings)
        return Scorer(self.policy, names, layers, heads), search

    def record(self, calibration: Calibration) -> dict[str, object]:
        """The settings as written to run.yaml, with the hash of the text that each task's items come from."""
        asked = self.asked
        made = [each.item for each in calibration.items]
        return {
            "command": "budgets",
            "model": self.subject.name,
            "revision": self.subject.revision,
            "dtype": self.subject.dtype,
            "policy": self.policy.name,
            "selector": None if self.policy.selector is None else str(self.policy.selector),
            "policy_id": self.policy.id,
            "tasks": [task.name for task in self.tasks],
            "sources": {item.task: item.source for item in made if item.source},
            "target": asked.budget.label,
            "length": asked.length,
            "samples": asked.samples,
            "held_out": asked.held_out,
            "regime": asked.regime,
            "fitness": asked.fitness,
            "item_seed": asked.seed,
            "skip_long": asked.skip_long,
            **self.settings.record(),
            "not_compressed": self.subject.structure.note,
            "versions": versions(),
        }

    def completed(self, search: EvolKV, target: int) -> list[int]:
        """The best budgets, completed to a target."""
        assert search.best is not None
        budgets = search.best.budgets
        return apportion(budgets, len(budgets) * target, min(self.settings.minimum, target), search.most)

    def explicit(self, budgets: Sequence[float], layers: int) -> Allocation:
        """Budgets as an allocation, heads as they are searched with."""
        return explicit(budgets, layers, adaptive_heads=self.adaptive_heads)

    def rows(self, search: EvolKV, scorer: Scorer) -> dict[str, list[Policy]]:
        """The divisions of the table, all of the same total."""
        assert search.best is not None
        count, layers = len(search.best.budgets), scorer.layers
        own = scorer.at(search.best)
        rows = {EVOLKV: [variant(own, allocation=self.explicit(self.completed(search, search.target), layers))]}
        if own.id != scorer.policy.id:
            rows["uniform, constants found"] = [variant(own, allocation=Allocation("uniform"))]
        for name in ("uniform", "pyramid", "reversed_pyramid", "adaptive"):
            rows[name] = [variant(scorer.policy, allocation=Allocation(name))]
        draws = []
        for draw in range(RANDOM_DRAWS):
            chance = random.Random(f"{self.settings.seed}-{draw}")
            draws.append(
                variant(
                    scorer.policy, allocation=self.explicit([chance.uniform(0.0, 2.0) for _ in range(count)], layers)
                )
            )
        return rows | {"random": draws}

    def file(
        self,
        search: EvolKV,
        scorer: Scorer,
        means: dict[str, dict[str, float]],
        notes: dict[str, str | None],
        completions: Sequence[int],
        record: dict[str, object],
    ) -> BudgetsFile:
        """What was found, as a file."""
        assert search.best is not None
        others = {str(target): self.completed(search, target) for target in completions}
        return BudgetsFile(
            format=FORMAT,
            budgets=_shaped(self.completed(search, search.target), scorer.layers),
            model=self.subject.name,
            policy=scorer.at(search.best).specification,
            policy_id=scorer.at(search.best).id,
            granularity=self.settings.granularity,
            heads="adaptive" if self.adaptive_heads else "alike",
            target=search.target,
            tokens=search.most,
            found=_shaped(search.best.budgets, scorer.layers),
            before=search.known[search.best],
            after=means["search"][EVOLKV],
            completions={key: _shaped(value, scorer.layers) for key, value in others.items()},
            table=[
                Row(name=name, search=value, validation=means.get("validation", {}).get(name), note=notes[name])
                for name, value in means["search"].items()
            ],
            search={key: value for key, value in record.items() if key != "versions"},
            evaluated=len(search.known),
        )


def _shaped(budgets: Sequence[int], layers: int) -> Numbers:
    heads = len(budgets) // layers
    numbers: list[int | float] = [*budgets]
    if heads == 1:
        return numbers
    return [numbers[place : place + heads] for place in range(0, len(numbers), heads)]
