"""What the report says of kept positions: a picture of layers and heads along the text for each policy.

The run's positions.json holds what is needed; `cachecraft report --model` measures it.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from cachecraft.evaluation.positions import Positions, read_positions
from cachecraft.reporting.report.evaluation import Heat, budget_title

KEPT = (0x1F, 0x8A, 0xC9, 0xFF)  # on light and on dark
NAMED = 12  # layers that have room for their numbers beside a picture


@dataclass(frozen=True)
class Band:
    """Neighbouring tokens of one kind: where they begin and how many there are, in percent of the text."""

    kind: str
    left: float
    width: float


@dataclass(frozen=True)
class Picture:
    """One policy: its picture, the share of all entries and of the answer's tokens that it keeps."""

    label: str
    kept: float
    answer: float | None
    image: str


@dataclass(frozen=True)
class PositionSection:
    """Everything that the report says of kept positions.

    Attributes:
        rows: Compressed layers times kv heads.
        layers: Numbers of the compressed layers, of which every so many are named beside the picture; () where the
            file does not say.
        shares: Share kept by layer and kv head, policies as columns.
        rejected: Policies that have no picture, and why.
    """

    task: str
    item: int
    budget: str
    tokens: int
    rows: int
    layers: tuple[int, ...]
    every: int
    shares: Heat
    rejected: tuple[tuple[str, str], ...]
    bands: tuple[Band, ...]
    policies: tuple[Picture, ...]
    data: dict[str, Any]


def position_section(folder: Path) -> PositionSection | None:
    """Read the positions of a run, or None where it has none."""
    found = read_positions(folder)
    if found is None:
        return None
    masks = {label: found.mask(label) for label in found.masks}
    first = next(iter(masks.values()))
    answer = found.segments.get("answer", [])
    pictures = tuple(
        Picture(label, float(mask.mean()), float(mask[:, answer].mean()) if answer else None, _image(mask))
        for label, mask in masks.items()
    )
    bands = [band for kind in ("needle", "answer") for band in _bands(found, kind)]
    shares = [[round(100 * float(share)) for share in mask.mean(axis=0)] for mask in masks.values()]
    kinds = {kind: found.segments.get(kind, []) for kind in ("needle", "answer")}
    data = {"tokens": found.tokens, "shares": shares, **kinds}
    return PositionSection(
        found.task.removeprefix("ruler:"),
        found.item,
        budget_title(found.budget),
        len(found.tokens),
        int(first.shape[0]),
        tuple(found.layers),
        -(-len(found.layers) // NAMED),
        _shares(found, masks),
        tuple(found.rejected.items()),
        tuple(bands),
        pictures,
        data,
    )


def _shares(found: Positions, masks: Mapping[str, numpy.ndarray[Any, Any]]) -> Heat:
    heads = 0 if not found.layers or found.rows % len(found.layers) else found.rows // len(found.layers)
    rows = []
    for place in range(found.rows):
        name = f"layer {found.layers[place // heads]}, head {place % heads}" if heads else f"row {place}"
        kept = [float(mask[place].mean()) for mask in masks.values()]
        rows.append((name, False, tuple((share, share) for share in kept)))
    return Heat("", tuple(masks), tuple(rows))


def _bands(found: Positions, kind: str) -> list[Band]:
    unit = 100 / len(found.tokens)
    runs: list[list[int]] = []
    for place in sorted(found.segments.get(kind, [])):
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return [Band(kind, run[0] * unit, len(run) * unit) for run in runs]


def _image(mask: numpy.ndarray[Any, Any]) -> str:
    """A PNG, (rows, tokens), as a data URL: kept is coloured, the rest transparent."""
    from matplotlib.image import imsave

    pixels = numpy.zeros((*mask.shape, 4), dtype=numpy.uint8)
    pixels[mask] = KEPT
    file = io.BytesIO()
    imsave(file, pixels, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
