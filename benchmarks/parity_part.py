"""The part of vs_kvpress.py that compares kept indices and greedy answers, and prints them by policy."""

from __future__ import annotations

import argparse
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
PARITY_TASKS = ("ruler:niah_single_2", "ruler:niah_multikey_1", "ruler:vt")


def open_samples(
    model: Model, peer: PeerProcess, report: BenchReport, name: str, samples: list[Sample], options: argparse.Namespace
) -> None:
    """Hand samples and model over to the peer."""
    path = report.folder / f"samples-{name}.json"
    write_samples(path, samples)
    peer.open(model.folder, path, options.threads)


def compare_sample(
    model: Model, peer: PeerProcess, number: int, sample: Sample, options: argparse.Namespace, folder: Path
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
                parity = compare(choice, torch.from_numpy(file["kept"]).long())
            flip = find_flip(model, trace, sample, choice, answers[at * len(keeps) + index], cell, parity)
            rows.append({"policy": name, "sample": number, "keep": keep, "parity": parity, "flip": flip, "peer": cell})
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
    return Flip(at, margin, parity.differing == 0)


def run_parity(model: Model, peer: PeerProcess, report: BenchReport, options: argparse.Namespace) -> None:
    samples = make_samples(model.subject.tokenizer, PARITY_TASKS, options.samples, options.parity_length)
    open_samples(model, peer, report, "parity", samples, options)
    rows: list[dict[str, Any]] = []
    with report.progress() as bar:
        job = bar.add_task("parity", total=len(samples))
        for number, sample in enumerate(samples):
            rows += compare_sample(model, peer, number, sample, options, report.folder)
            bar.advance(job)
    lines = []
    for name in options.policies.split(","):
        own = [row for row in rows if row["policy"] == name]
        total = sum((row["parity"] for row in own), Parity())
        flips = [row["flip"] for row in own if row["flip"] is not None]
        margins = [flip.margin for flip in flips]
        lines.append(
            [
                name,
                f"{total.identical:,}/{total.selections:,} ({total.identical / total.selections:.2%})",
                total.differing,
                total.differing_near - total.differing_protected,
                total.differing_protected,
                total.differing - total.differing_near,
                f"{total.near / total.entries:.1e}",
                f"{len(own) - len(flips)}/{len(own)}",
                ", ".join(f"{margin:.1e}" for margin in sorted(margins)) or "—",
            ]
        )
    report.table(
        f"Kept indices and greedy answers · {len(samples)} samples of {options.parity_length} tokens, "
        f"ratios {options.ratios}",
        [
            "policy",
            "identical selections",
            "entries that differ",
            "near ties",
            "cut protection",
            "unexplained",
            "near ties overall",
            "same answers",
            "logit margin at flips",
        ],
        lines,
    )
    report.say(
        "A selection is one (layer, head, ratio, sample). Near tie: score within 1e-5 of the threshold, relative. "
        "Cut protection: the budget is smaller than the protected window, of which kvpress keeps an arbitrary part and "
        "CacheCraft the most recent."
    )
    report.keep("parity", [plain_row(row) for row in rows])


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
