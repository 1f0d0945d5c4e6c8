"""The part of vs_kvpress.py that compares kept indices and greedy answers, and prints them by policy."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from answer_parity import Flip, first_difference, margin_after, until_stop
from bench_report import BenchReport
from index_parity import Choice, Parity, choices, compare
from peer_process import PeerCell, PeerProcess, peer_ratio
from samples import Sample, make_samples, write_samples
from subject import Model

from cachecraft.evaluation.answers import answer_ids
from cachecraft.evaluation.traces import Trace, record
from cachecraft.policy.contract import load_policy
from cachecraft.policy.decide import keep_count

COMPARED = ("knorm", "keydiff", "snapkv", "tova", "streaming_llm", "observed_attention")
COLUMNS = (
    *("policy", "selections", "identical", "entries apart", "near ties", "others", "all near ties"),
    *("cut (apart)", "same answers", "margins"),
)
LEGEND = (
    "Selections: (layer, head, ratio, sample). Entries apart: kept by one side only. Near ties: those of them whose "
    "score lies within 1e-5 of the threshold, relative to it; others: the rest, 0 is wanted. All near ties: their "
    "share of all entries compared.",
    "Cut (apart): selections whose budget is below the protected window, in no other column, and entries apart "
    "in them: there kvpress keeps an arbitrary part of the window and CacheCraft its most recent entries.",
    "Margins: best less second best of our logits where an answer first differs; * where the kept entries differ too.",
)
PARITY_TASKS = ("ruler:niah_single_2", "ruler:niah_multikey_1", "ruler:vt")


def open_samples(
    model: Model, peer: PeerProcess, report: BenchReport, name: str, samples: list[Sample], options: argparse.Namespace
) -> None:
    """Hand samples and model over to the peer."""
    path = report.folder / f"samples-{name}.json"
    write_samples(path, samples)
    peer.open(model.folder, path, options.threads)


def compare_sample(
    model: Model,
    peer: PeerProcess,
    number: int,
    sample: Sample,
    options: argparse.Namespace,
    folder: Path,
    tick: Callable[[], None],
) -> list[dict[str, Any]]:
    """Compare all policies and ratios on one sample: one row for each cell."""
    structure, tokens = model.subject.structure, len(sample.context_ids)
    trace = record(structure, sample.context_ids)
    names = options.policies.split(",")
    keeps = [keep_count(tokens, ratio=float(ratio)) for ratio in options.ratios.split(",")]
    ours = choices(model.subject, trace, [load_policy(name) for name in names], keeps)
    flat = [list(choice.masks) for by_keep in ours for choice in by_keep]
    answers = answer_ids(structure, trace, flat, sample.follow_ids, sample.item.max_new_tokens)
    rows = []
    for at, name in enumerate(names):
        for index, keep in enumerate(keeps):
            choice = ours[at][index]
            kept = folder / f"{name}-sample{number}-keep{keep}.npz"
            cell = peer.cell(name, peer_ratio(tokens, keep), number, kept)
            with np.load(kept) as file:
                parity = compare(choice, torch.from_numpy(file["masks"]))
            flip = find_flip(model, trace, sample, choice, answers[at * len(keeps) + index], cell, parity)
            rows.append({"policy": name, "sample": number, "keep": keep, "parity": parity, "flip": flip, "peer": cell})
            tick()
    return rows


def find_flip(
    model: Model, trace: Trace, sample: Sample, choice: Choice, ours: list[int], cell: PeerCell, parity: Parity
) -> Flip | None:
    """Where our answer and the peer's part, or None."""
    structure = model.subject.structure
    at = first_difference(ours, until_stop(cell.ids, structure.stop_ids))
    if at is None:
        return None
    margin = margin_after(structure, trace, choice.masks, sample.follow_ids, ours[:at])
    return Flip(at, margin, parity.differing + parity.cut_differing == 0)


def run_parity(model: Model, peer: PeerProcess, report: BenchReport, options: argparse.Namespace) -> None:
    samples = make_samples(model.subject.tokenizer, PARITY_TASKS, options.samples, options.parity_length)
    if options.parity_tokens is not None:
        samples = [with_limit(sample, options.parity_tokens) for sample in samples]
    open_samples(model, peer, report, "parity", samples, options)
    rows: list[dict[str, Any]] = []
    with report.progress() as bar:
        cells = len(options.policies.split(",")) * len(options.ratios.split(","))
        job = bar.add_task("kept indices and answers", total=cells * len(samples))
        for number, sample in enumerate(samples):
            rows += compare_sample(model, peer, number, sample, options, report.folder, lambda: bar.advance(job))
            report.keep("parity", [plain_row(row) for row in rows])
    report.table(
        f"Kept indices and greedy answers · {len(samples)} samples of {options.parity_length} tokens, "
        f"ratios {options.ratios}",
        COLUMNS,
        [line(name, [row for row in rows if row["policy"] == name]) for name in options.policies.split(",")],
    )
    for text in LEGEND:
        report.say(text)


def with_limit(sample: Sample, new_tokens: int) -> Sample:
    """The same sample with a lower limit of new tokens."""
    limit = min(new_tokens, sample.item.max_new_tokens)
    return replace(sample, item=replace(sample.item, max_new_tokens=limit))


def line(name: str, rows: list[dict[str, Any]]) -> list[Any]:
    """One policy's line of the table; see `LEGEND`."""
    total = sum((row["parity"] for row in rows), Parity())
    flips: list[Flip] = sorted((row["flip"] for row in rows if row["flip"]), key=lambda flip: flip.margin)
    return [
        name,
        total.selections,
        f"{total.identical / total.selections:.2%}" if total.selections else "—",
        total.differing,
        total.differing_near,
        total.differing - total.differing_near,
        f"{total.near / total.entries:.3%}" if total.entries else "—",
        f"{total.cut} ({total.cut_differing:,})" if total.cut else "0",
        f"{len(rows) - len(flips)}/{len(rows)}",
        " ".join(f"{flip.margin:.1e}{'' if flip.same_entries else '*'}" for flip in flips) or "—",
    ]


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """A row of `compare_sample` in types that JSON has."""
    return {
        "policy": row["policy"],
        "sample": row["sample"],
        "keep": row["keep"],
        "parity": vars(row["parity"]),
        "flip": None if row["flip"] is None else vars(row["flip"]),
        "peer_answer": row["peer"].answer,
    }
