"""Which positions policies keep on one item, per layer and kv head, measured once and kept in the run's folder."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy
import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from cachecraft.errors import RunError
from cachecraft.evaluation.apart import Apart
from cachecraft.evaluation.cells import Budget, Regime, make_cells
from cachecraft.evaluation.measure import split_prompt
from cachecraft.evaluation.retention import VITAL, compressed_segments
from cachecraft.evaluation.selections import Selections, Subject
from cachecraft.evaluation.timing import Stopwatch
from cachecraft.evaluation.traces import record
from cachecraft.tasks.prompt import render
from cachecraft.tasks.task import Item

FILE = "positions.json"


class Positions(BaseModel):
    """What policies keep of one item's context.

    Attributes:
        format: The version of the file's form.
        model, task, item, budget: What was compressed, and how far.
        tokens: The text of each entry.
        segments: Places of the vital segments' tokens by name.
        rows: Compressed layers times kv heads.
        masks: By policy the kept entries, (rows, tokens) bits packed and in base64, layers in order and their heads.
        layers: Numbers of the compressed layers; files that are older do not say.
        rejected: By policy why it has no mask.
    """

    model_config = ConfigDict(extra="forbid")

    format: Literal["cachecraft-positions-1"] = "cachecraft-positions-1"
    model: str
    task: str
    item: int
    budget: str
    tokens: list[str]
    segments: dict[str, list[int]]
    rows: int
    masks: dict[str, str]
    layers: list[int] = []
    rejected: dict[str, str] = {}

    def mask(self, policy: str) -> numpy.ndarray[Any, Any]:
        """(rows, tokens) bool: what a policy keeps."""
        bits = numpy.frombuffer(base64.b64decode(self.masks[policy]), dtype=numpy.uint8)
        count = self.rows * len(self.tokens)
        return numpy.unpackbits(bits, count=count).reshape(self.rows, len(self.tokens)).astype(bool)


def measure_positions(
    subject: Subject,
    item: Item,
    policies: Sequence[str],
    budget: Budget,
    *,
    regime: Regime = "agnostic",
    selector: str | None = None,
    trust: bool = False,
) -> Positions:
    """Let policies decide on one item.

    Args:
        subject: The model.
        item: The item.
        policies: Specifications as `evaluate` takes them.
        budget: What stays.
        regime: Whether the question is compressed, too.
        selector: Replaces every policy's own.
        trust: Run policies that do not come with CacheCraft in this process; else they run in the sandbox.

    Raises:
        CacheCraftError: A policy does not exist, or all of them broke the contract.
    """
    cells = make_cells(policies, [budget], references=(), selector=selector, run=trust)
    prompt = render(subject.tokenizer, item)
    context, _ = split_prompt(prompt, regime)
    trace = record(subject.structure, context)
    with Apart() as apart:
        chosen = Selections(subject, trace, cells, Stopwatch(), None if trust else apart)
    masks = {}
    for cell in cells:
        if (own := chosen.of(cell)) is not None:
            kept = torch.cat([own[layer] for layer in subject.structure.compressed])
            masks[cell.label] = base64.b64encode(numpy.packbits(kept.cpu().numpy()).tobytes()).decode()
    if not masks:
        raise RunError(f"No policy could decide on the item: {next(iter(chosen.rejected.values()))}")
    segments = compressed_segments(subject.tokenizer, item, prompt, trace.tokens)
    return Positions(
        model=subject.name,
        task=item.task,
        item=item.index,
        budget=budget.label,
        tokens=[subject.tokenizer.decode([token]) for token in trace.ids],
        segments={name: segments[name].tolist() for name in VITAL if name in segments},
        rows=len(subject.structure.compressed) * subject.structure.kv_heads,
        masks=masks,
        layers=list(subject.structure.compressed),
        rejected={cell.label: chosen.rejected[id(cell)] for cell in cells if id(cell) in chosen.rejected},
    )


def write_positions(folder: Path, found: Positions) -> Path:
    """Keep positions in a run's folder; those of an earlier measurement are replaced.

    Raises:
        RunError: The folder cannot be written.
    """
    path, partial = folder / FILE, folder / f".{FILE}.{os.getpid()}"
    try:
        partial.write_text(found.model_dump_json(), encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        raise RunError(f"{path} cannot be written ({error.strerror}).") from error
    return path


def read_positions(folder: Path) -> Positions | None:
    """The positions in a run's folder, or None where it has none.

    Raises:
        RunError: The file is not of this form.
    """
    path = folder / FILE
    try:
        text = path.read_bytes()
    except OSError:
        return None
    try:
        found = Positions.model_validate_json(text)
        for policy in found.masks:
            found.mask(policy)
    except (ValidationError, ValueError) as error:
        raise RunError(f"{path} is damaged ({str(error).splitlines()[0]}); remove it to report without it.") from error
    return found if found.masks and found.tokens else None
