"""The part of vs_kvpress.py that compares scores, not only what is kept of them, for methods beyond the basic six.

What can be made alike is made alike: the same random projections, the same blend of Compactor, and contexts cut so that
attention inside chunks needs no padding, which kvpress does not mask. What then differs is a fault or a choice of one
side; docs/kvpress.md has the list.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_report import BenchReport
from index_parity import Parity, choices, compare
from parity_part import PARITY_TASKS, open_samples, with_limit
from peer_process import PeerProcess, peer_ratio
from samples import Sample, make_samples
from subject import Model
from torch import Tensor

from cachecraft.evaluation.traces import Trace, layer_features, record
from cachecraft.policy.contract import load_policy
from cachecraft.policy.decide import decide, keep_count
from cachecraft.policy.features import LayerFeatures


@dataclass(frozen=True)
class Method:
    """A method to compare.

    Attributes:
        policy: Our specification, which the peer's side knows, too.
        label: How the table calls it.
        ends, multiple: The context is cut to `ends` entries and a whole multiple of `multiple`; 1 leaves it whole.
        standardised: Scores are of mean 0 and deviation 1, so that near ties are relative to 1.
        random: It multiplies by a random projection, which the peer is given.
        chunks: Compare the ranking of chunks of 20 by these scores instead.
    """

    policy: str
    label: str
    ends: int = 0
    multiple: int = 1
    standardised: bool = False
    random: bool = False
    chunks: bool = False

    def cut(self, sample: Sample) -> Sample:
        """The sample with the part of its context that the method is compared on; one new token is enough."""
        whole = (len(sample.context_ids) - self.ends) // self.multiple * self.multiple
        return with_limit(replace(sample, context_ids=sample.context_ids[: self.ends + whole]), 1)


@dataclass(frozen=True)
class Reading:
    """A sample as both sides have it, and what a part of the comparison needs beside it.

    Attributes:
        model, peer: Both sides.
        trace: Our prefill of the sample's context.
        number: The sample's number at the peer.
        ratios: What is compared.
        folder: Where files may be left.
    """

    model: Model
    peer: PeerProcess
    trace: Trace
    number: int
    ratios: Sequence[float]
    folder: Path

    def layers(self) -> Iterator[LayerFeatures]:
        """The features of each layer."""
        return layer_features(self.model.subject.structure, self.model.subject.tokenizer, self.trace)

    def ask(self, press: str, ratio: float, **more: Any) -> tuple[Tensor, Tensor]:
        """What the peer keeps, (L, G, T) bool, and how it scored, float64."""
        told = self.folder / "told.npz"
        self.peer.cell(press, ratio, self.number, told, **more)
        with np.load(told) as file:
            return torch.from_numpy(file["masks"]), torch.from_numpy(file["scores"]).double()


METHODS = (
    Method("expected_attention", "expected_attention"),
    Method("lagkv", "lagkv"),
    Method("cur", "cur"),
    Method("leverage", "leverage", standardised=True, random=True),
    Method("noncausal", "noncausal, whole chunks", multiple=256, standardised=True),
    Method("noncausal", "noncausal, any length", standardised=True),
    Method("compactor", "compactor, whole chunks", ends=12, multiple=256, standardised=True, random=True),
    Method("compactor", "compactor, any length", standardised=True, random=True),
    Method("criticalkv(observed_attention)", "criticalkv(observed_attention)"),
    Method("criticalkv(expected_attention:value_norm=false)", "criticalkv(expected_attention)"),
    # Of a shorter last chunk kvpress stops where only some layers keep it: its mask is made for one length.
    Method("keydiff", "chunks:20 of keydiff", multiple=20, chunks=True),
    Method("knorm", "chunks:20 of knorm", multiple=20, chunks=True),
)
Compared = tuple[Tensor, Parity]  # score differences, flat, and what was kept
COLUMNS = (
    *("method", "largest", "apart", "selections", "identical", "entries apart", "near ties", "others"),
    "cut (apart)",
)
APART = 1e-3  # of a head's standard deviation
LEGEND = (
    "Largest: of the score differences, in units of the standard deviation of each head's scores, over the entries "
    f"that no side protects; apart: the share of them beyond {APART:g}. The other columns: as in the table of kept "
    "indices.",
    "Chunks: kvpress keeps whole chunks of 20, however many entries that makes; CacheCraft is asked for as many.",
)


def run_methods(model: Model, peer: PeerProcess, report: BenchReport, options: argparse.Namespace) -> None:
    samples = make_samples(model.subject.tokenizer, PARITY_TASKS, options.samples, options.parity_length)
    ratios = [float(ratio) for ratio in options.ratios.split(",")]
    wanted = [method for method in METHODS if options.methods in method.label]
    compared: dict[str, list[Compared]] = {method.label: [] for method in wanted}
    with report.progress() as bar:
        job = bar.add_task("scores", total=len(wanted) * len(samples))
        for ends, multiple in dict.fromkeys((method.ends, method.multiple) for method in wanted):
            alike = [method for method in wanted if (method.ends, method.multiple) == (ends, multiple)]
            cut = [alike[0].cut(sample) for sample in samples]
            open_samples(model, peer, report, f"methods-{ends}-{multiple}", cut, options)
            for number, sample in enumerate(cut):
                trace = record(model.subject.structure, sample.context_ids)
                reading = Reading(model, peer, trace, number, ratios, report.folder)
                for method in alike:
                    compare_one = compare_chunks if method.chunks else compare_method
                    compared[method.label].append(compare_one(reading, method))
                    report.keep("methods", {label: summary(of) for label, of in compared.items() if of})
                    bar.advance(job)
    title = (
        f"Scores and kept indices · {len(samples)} samples of {options.parity_length} tokens, ratios {options.ratios}"
    )
    report.table(title, COLUMNS, [line(label, summary(of)) for label, of in compared.items()])
    for text in LEGEND:
        report.say(text)


def compare_method(reading: Reading, method: Method) -> Compared:
    """Score differences and what was kept, over all layers and ratios of one sample."""
    tokens, policy = reading.trace.tokens, load_policy(method.policy)
    keeps = [keep_count(tokens, ratio=ratio) for ratio in reading.ratios]
    noise = write_noise(reading) if method.random else None
    differences, total = [], Parity()
    (ours,) = choices(reading.model.subject, reading.trace, [policy], keeps)
    for keep, choice in zip(keeps, ours, strict=True):
        blend = 1 - keep / tokens if method.policy == "compactor" else None
        masks, theirs = reading.ask(method.policy, peer_ratio(tokens, keep), blend=blend, noise=noise)
        differences.append(score_differences(choice.worth, theirs))
        total += compare(choice, masks, scale=float(method.standardised))
    return torch.cat(differences), total


def write_noise(reading: Reading) -> Path:
    """A file of our normal draws of the projections, (L, G, D, 48)."""
    draws = [
        torch.randn(features.kv_heads, features.head_dim, 48, generator=features.view().generator())
        for features in reading.layers()
    ]
    path = reading.folder / "noise.npy"
    np.save(path, torch.stack(draws).numpy())
    return path


def compare_chunks(reading: Reading, method: Method) -> Compared:
    """The ranking of chunks: ours keeps as many entries as the peer's whole chunks have, layer by layer."""
    policy, total = load_policy(method.policy, selector="chunks:20"), Parity()
    for ratio in reading.ratios:
        masks, _ = reading.ask(f"chunks({method.policy})", ratio)
        for features, theirs in zip(reading.layers(), masks, strict=True):
            (mine,) = decide(policy, features, [theirs.sum(dim=-1)])
            differing = (mine.mask != theirs).sum(dim=-1)
            total += Parity(
                selections=len(theirs),
                identical=int((differing == 0).sum()),
                entries=theirs.numel(),
                differing=int(differing.sum()),
            )
    return torch.empty(0), total


def score_differences(ours: Tensor, theirs: Tensor) -> Tensor:
    """Ours less theirs, each over its head's standard deviation, where neither side lifted the score: flat."""
    lifted = ours.isinf() | (theirs > torch.finfo(torch.float32).max / 2)
    lifted |= (ours == ours.amax(dim=(1, 2), keepdim=True)) & (ours > 1)  # the first stage of criticalkv
    found = []
    for mine, other, out in zip(ours.flatten(0, 1), theirs.flatten(0, 1), lifted.flatten(0, 1), strict=True):
        mine, other = mine[~out], other[~out]
        found.append((mine / mine.std() - other / other.std()).abs())
    return torch.cat(found)


def summary(compared: Sequence[Compared]) -> dict[str, Any]:
    """All samples of a method together, in types that JSON has."""
    flat = torch.cat([differences for differences, _ in compared])
    return {
        "largest": float(flat.max()) if len(flat) else None,
        "apart": float((flat > APART).double().mean()) if len(flat) else None,
        "parity": vars(sum((parity for _, parity in compared), Parity())),
    }


def line(label: str, found: dict[str, Any]) -> list[str]:
    """A method's line of the table; see `LEGEND`."""
    total = Parity(**found["parity"])
    scored = found["largest"] is not None
    return [
        label,
        f"{found['largest']:.1e}" if scored else "—",
        f"{found['apart']:.3%}" if scored else "—",
        f"{total.selections:,}",
        f"{total.identical / total.selections:.2%}" if total.selections else "—",
        f"{total.differing:,}",
        f"{total.differing_near:,}",
        f"{total.differing - total.differing_near:,}",
        f"{total.cut} ({total.cut_differing:,})" if total.cut else "0",
    ]
