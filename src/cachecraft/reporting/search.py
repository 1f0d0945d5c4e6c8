"""How a discovery shows itself: live while it runs, and in a few lines when it is over."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from cachecraft.evaluation.statistics import Estimate
from cachecraft.evolution.decompose import Worth
from cachecraft.evolution.fitness import correlation
from cachecraft.evolution.llm.calls import Totals
from cachecraft.evolution.loop import SearchProgress, baseline
from cachecraft.evolution.population import Population

PLAIN_SECONDS = 15.0  # between two lines where there is no terminal
NAMES = {"seen": "waiting", "ok": "measured"}


@contextmanager
def search_display(console: Console) -> Iterator[Callable[[SearchProgress], None]]:
    """Show a search: a live panel on a terminal, else a line now and then."""
    if not console.is_terminal or os.environ.get("NO_COLOR"):
        yield _plain(console)
        return
    with Live(console=console, transient=True, refresh_per_second=4) as live:
        yield lambda seen: live.update(_panel(seen))


def _plain(console: Console) -> Callable[[SearchProgress], None]:
    last = 0.0

    def update(seen: SearchProgress) -> None:
        nonlocal last
        if time.monotonic() - last >= PLAIN_SECONDS:
            last = time.monotonic()
            console.print(" · ".join(_facts(seen)), markup=False, soft_wrap=True)

    return update


def _panel(seen: SearchProgress) -> Group:
    table = Table.grid(padding=(0, 2))
    for fact in _facts(seen):
        table.add_row(Text(fact))
    return Group(ProgressBar(total=1.0, completed=seen.share, width=60), table)


def _facts(seen: SearchProgress) -> Iterator[str]:
    if seen.phase == "recording":
        yield "Recording items …"
        return
    if seen.phase == "asking":
        yield "Asking for programs …"
    counts = {NAMES.get(state, state): count for state, count in seen.counts.items() if count}
    yield f"{sum(counts.values())} candidates: " + ", ".join(f"{count} {state}" for state, count in counts.items())
    if seen.best is not None and seen.best.fitness is not None:
        line = f", best known {seen.baseline[0]} {seen.baseline[1]:.3f}" if seen.baseline else ""
        yield f"best {seen.best.name} {seen.best.fitness.mean:.3f} of the way from random to full{line}"
    if seen.latest is not None and seen.latest.reason:
        yield f"{seen.latest.name} {seen.latest.state} ({seen.latest.stage}): {seen.latest.reason}"[:160]
    told = [
        f"{name} {value:+.2f}"
        for name, value in zip(("error→quick", "quick→full"), seen.correlations, strict=True)
        if value is not None
    ]
    if told:
        yield f"rank correlations: {', '.join(told)}"
    if seen.calls is not None:
        yield from calls_told(seen.calls)
    for each in seen.diagnoses[-3:]:
        yield f"{each.kind}: {each.action} ({each.verdict})"
    spent, left = seen.seconds
    yield f"{_minutes(spent)} spent" + ("" if left is None else f", about {_minutes(left)} left")


def calls_told(calls: Totals) -> Iterator[str]:
    """Calls of language models in a line or two: replies by what became of them, tokens, and dollars where priced."""
    replies = ", ".join(f"{count} {name}" for name, count in calls.outcomes.items())
    yield f"{calls.calls} calls, {calls.failed} without a reply; replies: {replies or 'none'}"
    known = calls.priced and calls.money is not None
    money = f"${calls.money:.4f}" if known else "cost unknown"
    if known and calls.unknown:
        money += f" and the unknown cost of {calls.unknown} calls"
    yield f"{calls.tokens_in:,} tokens of prompts, {calls.tokens_out:,} of replies, {money}"


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def describe_search(folder: Path) -> list[str]:
    """What a search came to: its candidates, its rejections by reason, its best."""
    with Population(folder) as population:
        told = population.told()
        reasons: dict[str, int] = {}
        for each in told:
            if each.state != "ok":
                reasons[f"{each.state} at {each.stage}"] = reasons.get(f"{each.state} at {each.stage}", 0) + 1
        lines = [f"{len(told)} candidates in {population.generation} batches, {_minutes(population.seconds)}"]
        lines += [f"  {count} {reason}" for reason, count in sorted(reasons.items(), key=lambda pair: -pair[1])]
        best, line = population.best, baseline(population)
        if best is not None and best.fitness is not None:
            share, items = best.fitness.mean, best.fitness.items
            lines.append(f"best: {best.name}, {share:.3f} of the way from random to full over {items} items")
        if line is not None:
            lines.append(f"best known policy in the search: {line[0]}, {line[1]:.3f}")
        for earlier, later in (("error", "quick"), ("quick", "full")):
            found = correlation(population, earlier, later)
            known = "not known yet" if found is None else f"{found:+.2f}"
            lines.append(f"rank correlation of {earlier} with {later}: {known}")
        return lines


def decomposition_tables(scores: Mapping[tuple[str, str], Estimate], worths: Sequence[Worth]) -> list[Table]:
    """Scorers by selectors, and what each side is worth."""
    selectors = list(dict.fromkeys(selector for _, selector in scores))
    crossed = Table(box=None, pad_edge=False, header_style="bold")
    crossed.add_column("scorer")
    for selector in selectors:
        crossed.add_column(selector, justify="right")
    for scorer in dict.fromkeys(scorer for scorer, _ in scores):
        crossed.add_row(scorer, *(f"{scores[scorer, selector].estimate:.1f}" for selector in selectors))
    told = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "instead of", "points", "95 % interval"):
        told.add_column(column, justify="right" if column.startswith(("points", "95")) else "left")
    for each in worths:
        points = each.points
        interval = f"{points.low:+.1f} to {points.high:+.1f}"
        told.add_row(f"{each.kind} {each.name}", each.baseline, f"{points.estimate:+.1f}", interval)
    return [crossed, told]
