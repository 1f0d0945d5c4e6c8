"""What the report says of a search of budgets: what each layer keeps, beside other divisions, and how it got there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachecraft.budgets.evolkv import cache_score
from cachecraft.budgets.settings import EvolKVSettings
from cachecraft.reporting.budgets import falling_like
from cachecraft.reporting.report.charts import Point, budget_chart, progress_chart
from cachecraft.reporting.report.evaluation import budget_title
from cachecraft.reporting.report.runs import RunFolder

FILE = "budgets.json"


@dataclass(frozen=True)
class LayerBudget:
    """What a layer keeps per kv head: the mean, least and most found, and what uniform and pyramid keep."""

    found: float
    least: float
    most: float
    uniform: float
    pyramid: float


@dataclass(frozen=True)
class Measured:
    """A vector that was measured on all items of the search.

    Attributes:
        number: From 1, in the order of being measured.
        budgets: Entries per kv head of each layer, or of each layer and then kv head.
        fitness: Mean over the items.
        objective: What the search maximises: the fitness, raised by how well the size meets the target.
        best: The best objective so far.
    """

    number: int
    budgets: tuple[float, ...]
    fitness: float
    objective: float
    best: float

    @property
    def mean(self) -> float:
        """Entries per kv head."""
        return sum(self.budgets) / len(self.budgets)

    @property
    def entries(self) -> str:
        """The budgets as a text."""
        return " ".join(f"{number:g}" for number in self.budgets)


@dataclass(frozen=True)
class BudgetSection:
    """Everything that the report says of a search of budgets.

    Attributes:
        layers: What each layer keeps.
        heads: Whether kv heads have budgets of their own.
        table: Divisions with their fitness on search and on validation items.
        vectors: All that were measured on all items.
    """

    facts: tuple[tuple[str, str], ...]
    unfinished: str
    bars: str
    layers: tuple[LayerBudget, ...]
    heads: bool
    table: tuple[tuple[str, float, float | None], ...]
    progress: str
    vectors: tuple[Measured, ...]


def budget_section(run: RunFolder, key: str) -> BudgetSection | None:
    """Read a search of budgets, or None where the run holds none.

    Args:
        run: A run.
        key: Unlike that of any other section of the page.
    """
    if run.settings.get("command") != "budgets":
        return None
    told = _file(run)
    items, vectors = _measured(run, told)
    found = _layers(told.get("budgets")) or _best(run, vectors)
    heads = any(len(row) > 1 for row in found)
    layers = _by_layer(found, told.get("tokens")) if found else ()
    values = [each.objective for each in vectors]
    rises = [Point(each.number, each.best) for each in vectors if each.objective == each.best]
    return BudgetSection(
        facts=_facts(run, told, len(vectors), items),
        unfinished="" if told else "The search is going on or was stopped: it has written no budgets yet.",
        bars=budget_chart(found, [each.pyramid for each in layers], name=f"{key}-bars") if found else "",
        layers=layers,
        heads=heads,
        table=_table(told),
        progress=progress_chart(values, rises, name=f"{key}-progress") if values else "",
        vectors=vectors,
    )


def _measured(run: RunFolder, told: Mapping[str, Any]) -> tuple[int, tuple[Measured, ...]]:
    """How many items are searched on, and the vectors measured on all of them; rows of the table are no vectors."""
    rows = run.rows("fitness", "SELECT candidate, item, value FROM fitness ORDER BY rowid")
    values: dict[str, dict[str, float]] = {}
    for candidate, item, value in rows:
        values.setdefault(candidate, {})[item] = value
    known = {key: budgets for key in values if (budgets := _vector(key)) is not None}
    own = run.settings
    items = len({item for key in known for item in values[key]})
    if not told and isinstance(own.get("samples"), int):  # the first vector may be on its way through them
        items = max(items, own["samples"] * len(own.get("tasks") or ()))
    whole = [key for key in known if len(values[key]) == items]
    settings = EvolKVSettings()
    weight, discount = own.get("weight", settings.weight), own.get("discount", settings.discount)
    vectors: list[Measured] = []
    for number, key in enumerate(whole, 1):
        budgets, fitness = known[key], math.fsum(values[key].values()) / items
        target = told.get("target") or known[whole[0]][0]  # a search begins with the uniform division of its target
        size = cache_score(sum(budgets) / len(budgets), target, discount)
        objective = fitness * (1 + weight * size)
        best = max(objective, vectors[-1].best) if vectors else objective
        vectors.append(Measured(number, budgets, fitness, objective, best))
    return items, tuple(vectors)


def _vector(key: str) -> tuple[float, ...] | None:
    """The budgets of a measured vector; None for a key of another kind, such as a row of the table."""
    try:
        found = json.loads(key)
    except ValueError:
        return None
    rows = _layers(found[0]) if isinstance(found, list) and found else None
    return None if rows is None else tuple(number for row in rows for number in row)


def _best(run: RunFolder, vectors: Sequence[Measured]) -> list[list[float]]:
    """The best vector so far by layer; of one with a number for each kv head nothing tells the layers apart yet."""
    if not vectors or run.settings.get("granularity") == "head":
        return []
    return [[number] for number in max(vectors, key=lambda each: each.objective).budgets]


def _by_layer(found: Sequence[Sequence[float]], tokens: int | None) -> tuple[LayerBudget, ...]:
    means = [sum(row) / len(row) for row in found]
    uniform, falling = sum(means) / len(means), falling_like(means, tokens)
    return tuple(
        LayerBudget(mean, min(row), max(row), uniform, share)
        for mean, row, share in zip(means, found, falling, strict=True)
    )


def _layers(budgets: Any) -> list[list[float]] | None:
    if not isinstance(budgets, list) or not budgets:
        return None
    rows = [row if isinstance(row, list) else [row] for row in budgets]
    good = all(row and all(isinstance(n, int | float) and math.isfinite(n) for n in row) for row in rows)
    return [[float(number) for number in row] for row in rows] if good else None


def _file(run: RunFolder) -> Mapping[str, Any]:
    """What the search wrote; nothing while it has not."""
    try:
        found = json.loads((run.folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _table(told: Mapping[str, Any]) -> tuple[tuple[str, float, float | None], ...]:
    rows = [row for row in told.get("table") or () if isinstance(row, dict) and isinstance(row.get("search"), float)]
    found = [(str(row.get("name")), row["search"], row.get("validation")) for row in rows]
    return tuple(sorted(found, key=lambda row: -(row[1] if row[2] is None else row[2])))


def _facts(run: RunFolder, told: Mapping[str, Any], vectors: int, items: int) -> tuple[tuple[str, str], ...]:
    own = run.settings
    tasks = ", ".join(str(task).removeprefix("ruler:") for task in own.get("tasks") or ())
    target = budget_title(str(own.get("target", "?")))
    entries = f" ({told['target']} entries a kv head)" if told.get("target") and target.endswith("evicted") else ""
    return (
        ("model", f"{own.get('model', '?')}, {own.get('dtype', '?')}"),
        ("policy", str(told.get("policy") or own.get("policy", "?"))),
        ("target", f"{target}{entries}"),
        ("searched on", f"{tasks}; {own.get('length', '?')} tokens, {items} items"),
        ("vectors measured", str(vectors)),
    )
