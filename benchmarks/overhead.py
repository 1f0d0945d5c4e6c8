"""What compressing adds to a prefill, and what it saves: seconds beside a plain prefill, and the peak of its memory.

Both sides read the same prompt with the same call of the model, which fills a cache and computes the logits of the
last token; on one side the call stands inside `with cachecraft.compress(...)`, which evicts each layer as soon as it
is done. They take turns, and the fastest of some rounds counts. The memory is that of fresh processes, one prefill
each, whose allocator gives freed memory back at once (glibc's MALLOC_* settings), so that it is the tensors' alone.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from bench_report import BenchReport
from prefill_part import around, prefill, prompt
from subject import Model, add_model_options, load_model

from cachecraft.errors import CacheCraftError
from cachecraft.terminal import one_sentence

ALLOWED = {"h2o": 0.60}  # share of a plain prefill that a policy may add
ALLOWED_ELSE = 0.05
ALLOWED_PEAK = 0.60  # of the plain prefill's cache
POLICIES = ("knorm", "keydiff", "vnorm", "vk_ratio", "snapkv", "frc", "h2o")
TIME_COLUMNS = ("prefill with", "wall, s", "CPU, s", "scoring, s", "added, wall", "added, CPU", "allowed")
MEMORY_COLUMNS = ("prefill with", "peak, MB", "cache, MB", "peak / plain peak", "peak / plain cache", "allowed")
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--length", type=int, default=4096, help="tokens of the prompt (default: %(default)s)")
    parser.add_argument("--ratio", type=float, default=0.88, help="share to evict (default: %(default)s)")
    parser.add_argument("--policies", default=",".join(POLICIES), help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="rounds, of which the fastest counts")
    parser.add_argument("--parts", default="time,memory", help="which parts to run (default: %(default)s)")
    return parser.parse_args()


def timed(model: Model, ids: torch.Tensor, policy: str, ratio: float) -> dict[str, float]:
    """Seconds of one prefill."""
    with around(model, policy, ratio)() as run:
        wall, cpu = time.perf_counter(), time.process_time()
        prefill(model, ids)
        found = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    return found | {"scoring": run.last.scoring_seconds if run is not None else 0.0}


def report_time(model: Model, report: BenchReport, options: argparse.Namespace) -> None:
    policies = ["plain", *options.policies.split(",")]
    ids = prompt(model, options.length)
    rounds: dict[str, list[dict[str, float]]] = {policy: [] for policy in policies}
    with report.progress() as bar:
        job = bar.add_task("prefills", total=len(policies) * options.repeats)
        for policy in policies:
            timed(model, ids[:, :256], policy, options.ratio)  # libraries choose their kernels on first use
        for _ in range(options.repeats):
            for policy in policies:
                bar.update(job, description=f"prefill, {policy}")
                rounds[policy].append(timed(model, ids, policy, options.ratio))
                bar.advance(job)
                report.keep("time", rounds)
    best = {policy: {what: min(each[what] for each in found) for what in found[0]} for policy, found in rounds.items()}
    rows = []
    for policy in policies:
        mine, plain = best[policy], best["plain"]
        row = [policy, f"{mine['wall']:.2f}", f"{mine['cpu']:.2f}"]
        if policy == "plain":
            rows.append([*row, "—", "—", "—", "—"])
            continue
        added = mine["wall"] / plain["wall"] - 1
        allowed = ALLOWED.get(policy, ALLOWED_ELSE)
        verdict = f"{allowed:.0%}{'' if added <= allowed else ', MISSED'}"
        rows.append(
            [*row, f"{mine['scoring']:.2f}", f"{added:+.1%}", f"{mine['cpu'] / plain['cpu'] - 1:+.1%}", verdict]
        )
    report.table(
        f"Seconds of a prefill of {options.length} tokens, ratio {options.ratio:g}; fastest of {options.repeats}",
        TIME_COLUMNS,
        rows,
    )


def measured_memory(policy: str, options: argparse.Namespace) -> dict[str, int]:
    """Growth of a fresh process's resident memory during one prefill, in bytes."""
    command = [sys.executable, str(Path(__file__).with_name("prefill_part.py")), "--policy", policy]
    command += ["--model", options.model, "--threads", str(options.threads)]
    command += ["--length", str(options.length), "--ratio", str(options.ratio)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | GIVE_BACK, check=False)
    if done.returncode:
        raise CacheCraftError(f"The prefill with {policy} failed: {done.stderr.strip()[-500:]}")
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def report_memory(report: BenchReport, options: argparse.Namespace) -> None:
    policies = ["plain", *options.policies.split(",")]
    found: dict[str, dict[str, int]] = {}
    with report.progress() as bar:
        job = bar.add_task("memory", total=len(policies))
        for policy in policies:
            bar.update(job, description=f"memory, {policy}")
            found[policy] = measured_memory(policy, options)
            bar.advance(job)
            report.keep("memory", found)
    rows: list[list[Any]] = []
    plain = found["plain"]
    for policy, mine in found.items():
        share = mine["peak"] / plain["cache"]
        verdict = "—" if policy == "plain" else f"{ALLOWED_PEAK:.0%}{'' if share <= ALLOWED_PEAK else ', MISSED'}"
        rows.append(
            [
                policy,
                f"{mine['peak'] / 1e6:.0f}",
                f"{mine['cache'] / 1e6:.1f}",
                f"{mine['peak'] / plain['peak']:.0%}",
                f"{share:.0%}",
                verdict,
            ]
        )
    report.table(
        f"Growth of the process during a prefill of {options.length} tokens at its peak, ratio {options.ratio:g}",
        MEMORY_COLUMNS,
        rows,
    )


def main() -> None:
    options = parse_options()
    report = BenchReport("overhead", vars(options))
    parts = options.parts.split(",")
    if "memory" in parts:  # first, while this process holds no model
        report_memory(report, options)
    if "time" in parts:
        report_time(load_model(options), report, options)
    report.say(f"Command: {' '.join(['benchmarks/overhead.py', *sys.argv[1:]])}")
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
