"""What an evaluation is asked for, what it tells while it runs, and what run.yaml records of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from cachecraft.errors import CacheCraftError
from cachecraft.evaluation.cells import REFERENCES, REGIMES, SCORINGS, Budget, Regime, Scoring
from cachecraft.evaluation.selections import Subject
from cachecraft.tasks.registry import whole_names
from cachecraft.tasks.task import ALL, SPLITS, Usable

# In which a folder's commands agree; `sources` (the hash of each task's material) and `skip_long` grow with the tasks.
IDENTITY = ("model", "revision", "dtype", "regime", "split", "seed", "ruler_compat", "sources", "skip_long")


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        policies: Specifications, as `load_policy` takes them.
        budgets: Ratios or numbers of entries.
        tasks: Names of tasks.
        length: Tokens of an item, the generated ones included; several for a sweep over lengths.
        samples: Items per task.
        regime: ``agnostic`` compresses the context, ``aware`` context and question.
        scoring: Any of ``answer``, ``likelihood``, ``fidelity``.
        split: ``search``, ``validation`` or ``test``; ``all`` for every item of a benchmark's files.
        seed: Base seed of the items.
        selector: Replaces every policy's own selector, for example ``chunks:20``.
        allocations: Each replaces every policy's own division, for example ``pyramid`` or a budgets file.
        references: Which reference lines to measure.
        essays: Text files for essay haystacks; none for the prose that comes with Python.
        data: Files or folders of questions, or ``"hub"``.
        ruler_compat: Seed RULER's tasks as the original does.
        limit: At most so many items per task, instead of exactly `samples`: all of them where a benchmark has fewer.
        skip_long: Leave out benchmark items that are longer than the length.
    """

    policies: tuple[str, ...]
    budgets: tuple[Budget, ...]
    tasks: tuple[str, ...]
    length: int | tuple[int, ...] = 1024
    samples: int = 20
    regime: Regime = "agnostic"
    scoring: tuple[Scoring, ...] = ("answer",)
    split: str = "test"
    seed: int = 0
    selector: str | None = None
    allocations: tuple[str, ...] = ()
    references: tuple[str, ...] = REFERENCES
    essays: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    ruler_compat: bool = False
    limit: int | None = None
    skip_long: bool = False

    @property
    def lengths(self) -> tuple[int, ...]:
        """Every length, each once, in the order given."""
        return tuple(dict.fromkeys((self.length,) if isinstance(self.length, int) else self.length))

    @property
    def most(self) -> int:
        """Items of a task that are measured at most."""
        return self.samples if self.limit is None else self.limit

    def __post_init__(self) -> None:
        """Refuse settings that cannot be measured.

        Raises:
            CacheCraftError: An unknown regime, scoring, split or reference line, no budget, or fewer than one sample.
        """
        for kind, value, known in (
            ("regime", self.regime, REGIMES),
            ("split", self.split, (*SPLITS, ALL)),
            *(("scoring", scoring, SCORINGS) for scoring in self.scoring),
            *(("reference line", reference, REFERENCES) for reference in self.references),
        ):
            if value not in known:
                raise CacheCraftError(f"There is no {kind} {value!r}; choose {' or '.join(known)}.")
        if not self.budgets:
            raise CacheCraftError("No budget was given; name at least one ratio or number of entries to keep.")
        if self.most < 1:
            raise CacheCraftError(f"{self.most} samples cannot be measured; ask for at least 1.")
        if not self.lengths or min(self.lengths) < 1:
            raise CacheCraftError(
                f"Items of {min(self.lengths, default=0)} tokens cannot be made; give a length of 1 or more."
            )
        if not self.scoring:
            raise CacheCraftError(f"No scoring was given; choose {' or '.join(SCORINGS)}.")


@dataclass(frozen=True)
class Progress:
    """Told after each item: items done and in all, cells measured for it, seconds by phase so far."""

    done: int
    total: int
    task: str
    cells: int
    seconds: dict[str, float]


def settings_record(
    subject: Subject,
    settings: Settings,
    *,
    skipped: Mapping[str, str],
    sources: Mapping[str, str],
    usable: Mapping[tuple[str, int], Usable],
    skip_long: Mapping[str, bool],
) -> dict[str, Any]:
    """The settings as written to run.yaml: resolved, in plain types.

    Args:
        subject: The model.
        settings: What was asked for.
        skipped: Tasks that could not be made, with what each needs.
        sources: Hash of the material of each task that has any.
        skip_long: For each task whose data end, whether its long items are left out.
        usable: By task and length, how many items there are, left out and cut ones counted; the plan's are what a
            report compares with what was measured.
    """
    return {
        "command": "evaluate",
        "model": subject.name,
        "revision": subject.revision,
        "dtype": subject.dtype,
        "regime": settings.regime,
        "length": list(settings.lengths),
        "split": settings.split,
        "seed": settings.seed,
        "tasks": list(whole_names(settings.tasks)),
        "skipped": dict(skipped),
        "essays": list(settings.essays),
        "data": list(settings.data),
        "sources": dict(sources),
        "ruler_compat": settings.ruler_compat,
        "samples": settings.most,
        "skip_long": dict(skip_long),
        "planned": {f"{task} at {length}": each.items for (task, length), each in usable.items()},
        "left_out": {f"{task} at {length}": each.too_long for (task, length), each in usable.items() if each.too_long},
        "cut": {f"{task} at {length}": each.cut for (task, length), each in usable.items() if each.cut},
        "repeated": {task: each.repeated for (task, _), each in usable.items() if each.repeated},
        "looked_at": {
            f"{task} at {length}": each.looked_at
            for (task, length), each in usable.items()
            if each.too_long or each.cut
        },
        "policies": list(settings.policies),
        "budgets": [budget.label for budget in settings.budgets],
        "scoring": list(settings.scoring),
        "selector": settings.selector or "each policy's own",
        "allocations": list(settings.allocations),
        "references": list(settings.references),
        "not_compressed": subject.structure.note,
        "versions": versions(),
        "threads": f"{torch.get_num_threads()}",
    }


def versions() -> dict[str, str]:
    """What computes, as run.yaml records it: versions and the machine."""
    return {
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} × {_processor()}",
    }


def _processor() -> str:
    """The processor's name as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or "processor of an unknown name")
