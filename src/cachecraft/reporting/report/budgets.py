"""What the report says of a search of budgets: what each layer keeps, beside other divisions, and how it got there."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachecraft.reporting.report.charts import Point, budget_chart, progress_chart
from cachecraft.reporting.report.runs import RunFolder

FILE = "budgets.json"
STEEPNESS = 20  # of the pyramid that is drawn for comparison, as PyramidKV has it (arXiv 2406.02069)


@dataclass(frozen=True)
class BudgetSection:
    """Everything that the report says of a search of budgets.

    Attributes:
        layers: For each layer what was found (mean over heads), uniform and pyramid keep.
        table: Divisions with their fitness on search and on validation items.
        rises: Where the best rose: number of vectors measured, fitness.
    """

    facts: tuple[tuple[str, str], ...]
    unfinished: str
    bars: str
    layers: tuple[tuple[float, float, float], ...]
    table: tuple[tuple[str, float, float | None], ...]
    progress: str
    rises: tuple[Point, ...]


def budget_section(run: RunFolder, key: str) -> BudgetSection | None:
    """Read a search of budgets, or None where the run holds none.

    Args:
        run: A run.
        key: Unlike that of any other section of the page.
    """
    if run.settings.get("command") != "budgets":
        return None
    items = run.rows("fitness", "SELECT COUNT(DISTINCT item) FROM fitness")
    rows = run.rows("fitness", "SELECT candidate, AVG(value) FROM fitness GROUP BY candidate ORDER BY MIN(rowid)")
    vectors = [(found, value) for key_, value in rows if (found := _vector(key_)) is not None]
    rises: list[Point] = []
    best: list[list[float]] = []
    for number, (vector, value) in enumerate(vectors, 1):
        if not rises or value > rises[-1].fitness:
            rises.append(Point(number, value))
            best = vector
    told = _file(run)
    found = _layers(told.get("budgets")) or best
    means = [sum(row) / len(row) for row in found]
    falling = _pyramid(means) if means else []
    uniform = sum(means) / len(means) if means else 0.0
    values = [value for _, value in vectors]
    return BudgetSection(
        facts=_facts(run, told, len(vectors), items[0][0] if items else 0),
        unfinished="" if told else "The search is going on or was stopped: it has written no budgets yet.",
        bars=budget_chart(found, falling, name=f"{key}-bars") if found else "",
        layers=tuple((mean, uniform, falling[place]) for place, mean in enumerate(means)),
        table=_table(told),
        progress=progress_chart(values, rises, name=f"{key}-progress") if values else "",
        rises=tuple(rises),
    )


def _vector(key: str) -> list[list[float]] | None:
    """The budgets of a measured vector; None for a key of another kind, such as a row of the table."""
    try:
        found = json.loads(key)
    except ValueError:
        return None
    return _layers(found[0]) if isinstance(found, list) and found else None


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


def _pyramid(means: Sequence[float]) -> list[float]:
    """A division of the same total that falls linearly from the first layer to the last."""
    keep = sum(means) / len(means)
    least, steps = keep / STEEPNESS, max(1, len(means) - 1)
    return [2 * keep - least - (2 * keep - 2 * least) * layer / steps for layer in range(len(means))]


def _table(told: Mapping[str, Any]) -> tuple[tuple[str, float, float | None], ...]:
    rows = [row for row in told.get("table") or () if isinstance(row, dict) and isinstance(row.get("search"), float)]
    found = [(str(row.get("name")), row["search"], row.get("validation")) for row in rows]
    return tuple(sorted(found, key=lambda row: -(row[1] if row[2] is None else row[2])))


def _facts(run: RunFolder, told: Mapping[str, Any], vectors: int, items: int) -> tuple[tuple[str, str], ...]:
    own = run.settings
    tasks = ", ".join(str(task).removeprefix("ruler:") for task in own.get("tasks") or ())
    found = [
        ("model", f"{own.get('model', '?')}, {own.get('dtype', '?')}"),
        ("policy", str(told.get("policy") or own.get("policy", "?"))),
        ("target", f"{told.get('target') or own.get('target', '?')} entries per kv head"),
        ("searched on", f"{tasks}; {own.get('length', '?')} tokens, {items} items"),
        ("vectors measured", str(vectors)),
    ]
    return tuple(found)
