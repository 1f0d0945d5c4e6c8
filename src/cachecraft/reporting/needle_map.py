"""The needle's map: for each policy and budget how often it was found, by depth and length; table, CSV, PNG and SVG."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cachecraft.errors import UnknownNameError
from cachecraft.evaluation.rows import rejections
from cachecraft.evaluation.store import Result
from cachecraft.tasks.scoring.rouge import rouge_1

_FAMILY = "needle:"
_COLUMNS = ("policy", "budget", "depth", "length", "items", "found", "rouge1_recall", "rouge1_f")


@dataclass(frozen=True)
class Spot:
    """One cell of a map.

    Attributes:
        policy, budget: The row and how much it keeps.
        depth: Per cent of the haystack before the needle.
        length: Tokens of the items.
        items: How many there are.
        found: Share of them whose exact value is in the answer: the score.
        rouge1_recall, rouge1_f: Of the answer against the needle's sentence, as other tools report it.
    """

    policy: str
    budget: str
    depth: int
    length: int
    items: int
    found: float
    rouge1_recall: float
    rouge1_f: float


def spots(results: Iterable[Result], texts: Mapping[str, Mapping[str, Any]]) -> list[Spot]:
    """The cells of all maps, by policy, budget, depth and length; [] without answers to needle tasks.

    A policy that was rejected on some item has no map at that budget: what it was measured on is not what others were.

    Args:
        results: Of a run.
        texts: What the run stores of each item.
    """
    groups: dict[tuple[str, str, int, int], list[Result]] = {}
    held = _answers(results)
    left_out = rejections(held)
    for each in held:
        if each.value is not None and (each.label, each.budget) not in left_out:
            key = each.label, each.budget, int(each.task.removeprefix(_FAMILY)), int(texts[each.item]["length"])
            groups.setdefault(key, []).append(each)
    found = []
    for key, own in sorted(groups.items()):
        overlaps = [rouge_1(each.detail["answer"], texts[each.item]["needles"][0]) for each in own]
        found.append(
            Spot(
                *key,
                items=len({each.item for each in own}),
                found=fmean(each.value for each in own if each.value is not None),
                rouge1_recall=fmean(each.recall for each in overlaps),
                rouge1_f=fmean(each.f for each in overlaps),
            )
        )
    return found


def rejected(results: Iterable[Result]) -> dict[tuple[str, str], str]:
    """Row and budget of what has no map because it was rejected, with the reason."""
    return rejections(_answers(results))


def _answers(results: Iterable[Result]) -> list[Result]:
    return [each for each in results if each.task.startswith(_FAMILY) and each.scoring == "answer"]


def export_maps(results: Iterable[Result], texts: Mapping[str, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write needle.csv and, for each budget, needle_BUDGET.png and .svg into a run's folder, if it has needle tasks."""
    held = spots(results, texts)
    if not held:
        return []
    table = folder / "needle.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(_COLUMNS)
        writer.writerows([getattr(each, column) for column in _COLUMNS] for each in held)
    written = [table]
    budgets = [budget for budget in dict.fromkeys(each.budget for each in held) if budget != "0"] or ["0"]
    for budget in budgets:
        paths = [folder / f"needle_{budget.replace(' ', '_')}.{ending}" for ending in ("png", "svg")]
        draw([each for each in held if each.budget in (budget, "0")], paths, title=f"needle found, budget {budget}")
        written += paths
    return written


def draw(held: Sequence[Spot], paths: Sequence[Path], *, title: str) -> None:
    """Draw one map for each policy, depth downwards, length to the right, the share found written in each cell.

    Args:
        held: Cells of one budget, and of the full cache.
        paths: Files to write; the ending says the format.
        title: Of the whole figure.
    """
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    policies = sorted({each.policy for each in held}, key=lambda name: (name != "full", name))
    depths, lengths = (sorted({getattr(each, name) for each in held}) for name in ("depth", "length"))
    across = min(4, len(policies))
    down = -(-len(policies) // across)
    width, height = 1.0 + 0.75 * len(lengths) + 0.6, 1.0 + 0.32 * len(depths)
    figure = Figure(figsize=(across * width + 1.0, down * height + 0.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True)
    for axis in axes.flat[len(policies) :]:
        axis.set_visible(False)
    for axis, policy in zip(axes.flat, policies, strict=False):
        values = np.full((len(depths), len(lengths)), np.nan)
        for each in held:
            if each.policy == policy:
                values[depths.index(each.depth), lengths.index(each.length)] = each.found
        axis.imshow(values, vmin=0, vmax=1, cmap="viridis", aspect="auto")
        for row, column in np.argwhere(np.isfinite(values)):
            shade = "black" if values[row, column] > 0.6 else "white"
            axis.text(column, row, f"{values[row, column]:.2f}", ha="center", va="center", fontsize=7, color=shade)
        axis.set_title(policy, fontsize=9)
        axis.set_xticks(range(len(lengths)), [str(length) for length in lengths], fontsize=7)
        axis.set_yticks(range(len(depths)), [f"{depth} %" for depth in depths], fontsize=7)
    for column in range(across):  # shared axes are labelled in the last row, which may have no map here
        lowest = (len(policies) - 1 - column) // across
        axes[lowest, column].tick_params(labelbottom=True)
    figure.supxlabel("tokens", fontsize=9)
    figure.supylabel("depth of the needle", fontsize=9)
    figure.suptitle(title, fontsize=10)
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def print_maps(console: Console, held: Sequence[Spot], policy: str = "") -> None:
    """Print a table for each policy and budget, depths as rows.

    Args:
        console: Where to print.
        held: Cells of all maps.
        policy: One row only; "" for all.

    Raises:
        UnknownNameError: There is no such row.
    """
    names = list(dict.fromkeys(each.policy for each in held))
    if policy and policy not in names:
        raise UnknownNameError("row in this run", policy, names)
    groups: dict[tuple[str, str], list[Spot]] = {}
    for each in held:
        if policy in ("", each.policy):
            groups.setdefault((each.policy, each.budget), []).append(each)
    for (name, budget), own in groups.items():
        lengths = sorted({each.length for each in own})
        title = escape(f"{name} at {budget}: share found")
        table = Table(
            box=None, pad_edge=False, header_style="bold", title=title, title_justify="left", title_style="bold"
        )
        table.add_column("depth", justify="right")
        for length in lengths:
            table.add_column(f"{length} tokens", justify="right")
        cells = {(each.depth, each.length): each for each in own}
        for depth in sorted({each.depth for each in own}):
            row = [cells.get((depth, length)) for length in lengths]
            table.add_row(f"{depth} %", *("" if each is None else f"{each.found:.2f}" for each in row))
        table.add_section()
        for title, column in (("ROUGE-1 recall", "rouge1_recall"), ("ROUGE-1 F", "rouge1_f")):
            means = [fmean(getattr(each, column) for each in own if each.length == length) for length in lengths]
            table.add_row(title, *(f"{mean:.2f}" for mean in means))
        console.print(table)
    console.print(
        f"{held[0].items} items in a cell; found: the exact value is in the answer. ROUGE-1 is of the answer "
        "against the needle's sentence, as other tools report it.",
        style="dim",
        markup=False,
    )
