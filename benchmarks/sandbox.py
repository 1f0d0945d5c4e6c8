"""What running a candidate in the sandbox costs beside running it in process, on recorded items of a real model.

Records a few items, shares them with the heavy features that the built-in policies ask for, and asks each policy for
its choice at several ratios: in process, in one candidate for each item, and in one candidate for all items; the
contract stage runs on two of them. Choices are compared bit by bit.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from bench_report import BenchReport
from samples import make_samples
from subject import Model, add_model_options, load_model

from cachecraft.evaluation.traces import layer_features, record
from cachecraft.evolution.admission import contract_stage
from cachecraft.policy.contract import Policy, load_policy
from cachecraft.policy.decide import keep_count
from cachecraft.policy.features import Features
from cachecraft.policy.sequence import decide_sequence
from cachecraft.sandbox import Ask, Choice, Limits, Program, Sandbox, SharedItem, Verdict, share
from cachecraft.terminal import one_sentence

POLICIES = "streaming_llm,knorm,vk_ratio,keydiff,random,tova,snapkv,observed_attention,frc"
COLUMNS = ("policy", "in process", "one item", "all items, each", "contract stage", "bits")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--task", default="ruler:niah_single_2", help="default: %(default)s")
    parser.add_argument("--length", type=int, default=1024, help="tokens of an item (default: %(default)s)")
    parser.add_argument("--items", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--policies", default=POLICIES, help="default: %(default)s")
    parser.add_argument("--ratios", default="0.75,0.88,0.95", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each, of which the median is shown")
    return parser.parse_args()


def heavy(f: Features) -> None:
    """What the built-in policies ask for."""
    f.attention_received()
    f.local_attention_received(32)
    f.window_attention(64)
    f.window_attention(1)


def shared_items(model: Model, options: argparse.Namespace, folder: Path, report: BenchReport) -> list[SharedItem]:
    """Record and share the items; says how long sharing takes and how big the files are."""
    structure, tokenizer = model.subject.structure, model.subject.tokenizer
    items, seconds = [], []
    for index, sample in enumerate(make_samples(tokenizer, [options.task], options.items, options.length)):
        trace = record(structure, sample.context_ids)
        began = time.perf_counter()
        layers = layer_features(structure, tokenizer, trace)
        items.append(share(folder / f"{index}.item", layers, warm=heavy, weights=folder / "weights"))
        seconds.append(time.perf_counter() - began)
    own, weights = (path.stat().st_size / 1e6 for path in items[0].files)
    report.say(
        f"{len(items)} items of about {items[0].shape[2]} entries, {own:.0f} MB each and {weights:.0f} MB for all; "
        f"features and file: {statistics.median(seconds):.2f} s each."
    )
    return items


@dataclass(frozen=True)
class Measured:
    """Medians in milliseconds: wall clock, and processor time where it is known."""

    wall: float
    processor: float

    def __str__(self) -> str:
        return f"{self.wall:.0f} ({self.processor:.0f})"


def measured(repeats: int, call: Callable[[], float]) -> Measured:
    """Call several times; the call returns its processor seconds."""
    walls, processors = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        processors.append(call())
        walls.append(time.perf_counter() - began)
    return Measured(1000 * statistics.median(walls), 1000 * statistics.median(processors))


def in_process(policy: Policy, item: SharedItem, keeps: Sequence[int]) -> float:
    """Processor seconds of a choice in this process."""
    began = time.process_time()
    decide_sequence(policy, item.layers, keeps)
    return time.process_time() - began


def same_bits(policy: Policy, items: list[SharedItem], choices: tuple[Choice, ...]) -> bool:
    """Whether the candidate chose what the policy chooses in this process."""
    for item, choice in zip(items, choices, strict=True):
        for budget, decided in enumerate(decide_sequence(policy, item.layers, choice.ask.keeps)):
            expected = torch.stack([decision.mask for decision in decided])
            if not torch.equal(torch.stack(choice.masks(budget)), expected):
                return False
    return True


def accepted(verdict: Verdict) -> Verdict:
    """A verdict that must be good."""
    if not verdict.ok:
        raise AssertionError(verdict)
    return verdict


def row(sandbox: Sandbox, policy: Policy, items: list[SharedItem], asks: list[Ask], repeats: int) -> list[str]:
    """One line of the table."""
    program = Program.of(policy)
    verdict = accepted(sandbox.run(program, asks))
    every = measured(repeats, lambda: accepted(sandbox.run(program, asks)).cpu_seconds)
    return [
        policy.name,
        str(measured(repeats, lambda: in_process(policy, items[0], asks[0].keeps))),
        str(measured(repeats, lambda: accepted(sandbox.run(program, asks[:1])).cpu_seconds)),
        str(Measured(every.wall / len(asks), every.processor / len(asks))),
        f"{measured(3, lambda: accepted(contract_stage(sandbox, program, asks[:2])).cpu_seconds).wall:.0f}",
        "same" if same_bits(policy, items, verdict.choices) else "OTHER",
    ]


def main() -> None:
    options = parse_options()
    model = load_model(options)
    torch.set_num_threads(1)  # as in the sandbox
    report = BenchReport("sandbox", vars(options))
    with tempfile.TemporaryDirectory() as folder, Sandbox(Limits(seconds=60)) as sandbox:
        items = shared_items(model, options, Path(folder), report)
        for index, item in enumerate(items):
            sandbox.load(str(index), item)
        report.say("Missing on this system: " + ("; ".join(sandbox.missing) or "nothing") + ".")
        ratios = [float(ratio) for ratio in options.ratios.split(",")]
        asks = [
            Ask(str(index), tuple(keep_count(item.shape[2], ratio) for ratio in ratios))
            for index, item in enumerate(items)
        ]
        rows = [row(sandbox, load_policy(name), items, asks, options.repeats) for name in options.policies.split(",")]
        report.table(
            f"Milliseconds, wall clock (processor), for {len(ratios)} ratios of one item on one thread", COLUMNS, rows
        )
        report.keep("rows", rows)
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
