"""Puts a comparison into words: who beats whom, by how much, on how many items, and what is not shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.markup import escape
from rich.table import Table

from cachecraft.evaluation.comparison import FULL, FULL_BUDGET, Cells, Compared
from cachecraft.evaluation.statistics import Estimate, NonInferiority

_POINTS = 100  # scores from 0 to 1 are spoken of in points


def unit_of(scoring: str) -> tuple[float, str]:
    """What differences are multiplied by and called: points of 100, or nats where scores are log-probabilities."""
    return (1.0, "nats") if scoring == "likelihood" else (float(_POINTS), "points")


def side_by_side(cells: Cells, means: Mapping[str, Mapping[str, Estimate]]) -> Table:
    """A rich table: one row per policy or reference line, one column per budget."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("policy", no_wrap=True)
    for budget in cells.budgets:
        table.add_column(budget, justify="right")
    order = sorted(means, key=lambda row: (row != FULL, -_average(means[row])))
    for row in order:
        style = "italic" if row in cells.references else ""
        table.add_row(escape(row), *(_shown_cell(cells, means, row, budget) for budget in cells.budgets), style=style)
    return table


def _shown_cell(cells: Cells, means: Mapping[str, Mapping[str, Estimate]], row: str, budget: str) -> str:
    found = means[row].get(FULL_BUDGET if row == FULL else budget)
    return _number(found) if found is not None else "rejected" if (row, budget) in cells.rejected else ""


def rejections(rejected: Mapping[tuple[str, str], str]) -> list[str]:
    """A sentence for each row and budget that was rejected on some item and is therefore not compared."""
    return [f"{row} at {budget} was rejected: {reason}" for (row, budget), reason in sorted(rejected.items())]


def sentences(found: Sequence[Compared], scoring: str) -> list[str]:
    """What is shown of each pair, and then what is not."""
    shown = [_shown(each, scoring) for each in found if each.shown]
    open_ = [_not_shown(each, scoring) for each in found if not each.shown]
    return shown + open_


def methods(found: Sequence[Compared]) -> str:
    """How the intervals and p-values were made, each way once."""
    return "; ".join(dict.fromkeys(each.difference.method for each in found))


def margins(found: Sequence[tuple[str, str, NonInferiority]], scoring: str) -> list[str]:
    """Whether each policy is shown to be within the margin of the full cache."""
    scale, unit = unit_of(scoring)
    return [
        f"{row} at {budget} is within {each.margin * scale:g} {unit} of the full cache: "
        f"{'shown' if each.accepted else 'not shown'} (difference {each.difference * scale:+.1f}, lower limit "
        f"{each.low * scale:+.1f}, {each.n} items)."
        for row, budget, each in found
    ]


def _shown(each: Compared, scoring: str) -> str:
    scale, unit = unit_of(scoring)
    forward = each.difference.estimate > 0
    better, worse = (each.a, each.b) if forward else (each.b, each.a)
    sign = scale if forward else -scale
    low, high = sorted((each.difference.low * sign, each.difference.high * sign))
    return (
        f"{better} beats {worse} at {each.budget} by {abs(each.difference.estimate) * scale:.1f} {unit}, 95 % "
        f"{low:.1f} to {high:.1f}, {each.difference.n} items (adjusted p {_p(each.p)})."
    )


def _not_shown(each: Compared, scoring: str) -> str:
    scale, unit = unit_of(scoring)
    d = each.difference
    why = "; shown by itself, the correction for many comparisons does not let it stand" if d.sure else ""
    return (
        f"{each.a} and {each.b} at {each.budget}: no difference shown ({d.estimate * scale:+.1f} {unit}, 95 % "
        f"{d.low * scale:+.1f} to {d.high * scale:+.1f}, {d.n} items, adjusted p {_p(each.p)}{why})."
    )


def _p(p: float) -> str:
    return "below 0.001" if p < 0.001 else f"{p:.3f}"


def _number(each: Estimate) -> str:
    return f"{each.estimate:.2f} [{each.low:.2f}, {each.high:.2f}] ({each.n})"


def _average(by_budget: Mapping[str, Estimate]) -> float:
    return sum(each.estimate for each in by_budget.values()) / len(by_budget)
