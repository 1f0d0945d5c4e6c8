"""Seconds per cell on both sides, taking turns so that a machine that slows down slows both.

Ours measures all cells of a sample from one cold prefill. The peer runs cell by cell and takes long, so by default a
stratified sample of its cells is timed (each policy equally often, the ratios spread over them) and its mean stands
for all. Its time follows the number of new tokens, so that number is given for both, and a mean adjusted to all cells'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from cold_run import ColdRun, cold_run
from peer_process import PeerProcess, peer_ratio
from samples import Sample

from cachecraft.errors import CacheCraftError
from cachecraft.evaluation.cells import Budget
from cachecraft.evaluation.selections import Subject

Grid = tuple[Sequence[str], Sequence[float]]  # policies, ratios


@dataclass
class Speed:
    """Timings of one grid at one length.

    Attributes:
        cells: Cells of the grid on each sample.
        answer, likelihood: Our cold runs, one per sample.
        peer_seconds, peer_cpu: The peer's timed cells.
        peer_tokens: Their new tokens, stop tokens included.
        same_answers: How many of them gave the same text as our cell.
    """

    cells: int
    answer: list[ColdRun] = field(default_factory=list)
    likelihood: list[ColdRun] = field(default_factory=list)
    peer_seconds: list[float] = field(default_factory=list)
    peer_cpu: list[float] = field(default_factory=list)
    peer_tokens: list[int] = field(default_factory=list)
    same_answers: int = 0

    @property
    def peer_cell(self) -> float:
        """The peer's mean seconds per timed cell."""
        return sum(self.peer_seconds) / len(self.peer_seconds)

    def peer_cell_adjusted(self, limit: int) -> float:
        """The peer's seconds per cell at the new tokens of all cells: a line through the timed ones, read there."""
        tokens = np.array(self.peer_tokens, dtype=float)
        if np.ptp(tokens) == 0:
            return self.peer_cell
        slope = np.polyfit(tokens, np.array(self.peer_seconds), 1)[0]
        return float(self.peer_cell + slope * (self.our_tokens(limit) - tokens.mean()))

    def our_cell(self, runs: Sequence[ColdRun]) -> float:
        """Our seconds per cell over some cold runs."""
        return sum(run.seconds for run in runs) / (self.cells * len(runs))

    def our_tokens(self, limit: int) -> float:
        """Mean new tokens of all our cells, the stop token included, which is what the peer's count includes."""
        counts = [int(result.detail["new_tokens"]) for run in self.answer for result in run.results]
        return sum(min(count + 1, limit) for count in counts) / len(counts)


def stratified(grid: Grid, count: int | None) -> list[tuple[str, float]]:
    """`count` cells of a grid: each policy equally often (give or take one), ratios shifted from policy to policy."""
    policies, ratios = grid
    total = len(policies) * len(ratios)
    if count is None or count >= total:
        return [(policy, ratio) for policy in policies for ratio in ratios]
    if count < len(policies):
        raise CacheCraftError(f"{count} cells are too few: time at least one of each of the {len(policies)} policies.")
    rounds = -(-count // len(policies))
    step = max(1, len(ratios) // rounds)
    order = [
        (policy, ratios[(index + turn * step) % len(ratios)])
        for turn in range(rounds)
        for index, policy in enumerate(policies)
    ]
    return order[:count]


def measure_speed(
    subject: Subject,
    peer: PeerProcess,
    samples: Sequence[tuple[int, Sample]],
    grid: Grid,
    peer_cells: int | None,
    tick: Callable[[str], None],
    *,
    likelihood: bool = True,
) -> Speed:
    """Time one grid.

    Args:
        subject: The model on our side.
        peer: The peer, with its samples open.
        samples: The samples to time on, each with its index at the peer; the first items of different tasks.
        grid: Policies and ratios.
        peer_cells: How many of the peer's cells to time in all; None for every cell on every sample.
        tick: Told what has just been done.
        likelihood: Also time our likelihood scoring.
    """
    policies, ratios = grid
    speed = Speed(cells=len(policies) * len(ratios))
    drawn = stratified(grid, peer_cells)
    for at, (number, sample) in enumerate(samples):
        # Cell j of round k goes to sample j + k, so that a policy's cells are spread over the samples.
        mine = [
            cell
            for index, cell in enumerate(drawn)
            if peer_cells is None or (index + index // len(policies)) % len(samples) == at
        ]
        half = len(mine) // 2
        answered = cold_run(subject, sample.item.task, policies, ratios, sample.item.length, "answer")
        speed.answer.append(answered)
        tick("ours, answers")
        _time_peer(speed, peer, number, sample, mine[:half], answered, tick)
        if likelihood:
            run = cold_run(subject, sample.item.task, policies, ratios, sample.item.length, "likelihood")
            speed.likelihood.append(run)
            tick("ours, likelihood")
        _time_peer(speed, peer, number, sample, mine[half:], answered, tick)
    return speed


def _time_peer(
    speed: Speed,
    peer: PeerProcess,
    number: int,
    sample: Sample,
    cells: Sequence[tuple[str, float]],
    ours: ColdRun,
    tick: Callable[[str], None],
) -> None:
    texts = {(result.label, result.budget): result.detail["answer"] for result in ours.results}
    tokens = len(sample.context_ids)
    for policy, ratio in cells:
        budget = Budget(ratio=ratio)
        cell = peer.cell(policy, peer_ratio(tokens, budget.entries(tokens)), number)
        speed.peer_seconds.append(cell.seconds)
        speed.peer_cpu.append(cell.cpu_seconds)
        speed.peer_tokens.append(len(cell.ids))
        speed.same_answers += cell.answer == texts[policy, budget.label]
        tick(f"peer, {policy} at {ratio:g}")
