"""What choosing costs: CPU seconds of every policy's scoring and selecting, as a share of one prefill of the context.

One prefill is timed and recorded; then each policy decides on some of its layers, evenly spread, at one ratio. What it
needs is computed anew for each policy, as when a context is compressed with it; the log-sum-exp of the attention comes
from the prefill. The best of several rounds counts, policies in turn: other work on the machine then changes little.
"""

from __future__ import annotations

import argparse
import time

import torch
from bench_report import BenchReport
from samples import make_samples
from subject import add_model_options, load_model

from cachecraft.evaluation.traces import layer_features, record
from cachecraft.policy.contract import builtin_policies, builtin_wrappers, load_policy
from cachecraft.policy.decide import decide, keep_count
from cachecraft.terminal import one_sentence

COLUMNS = ("policy", "ms a layer", "s a context", "share of the prefill", "target")
LIGHT = {"knorm", "keydiff", "vnorm", "vk_ratio", "snapkv", "frc"}
TARGETS = {**dict.fromkeys(LIGHT, 0.05), "h2o": 0.60}


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--length", type=int, default=4096, help="tokens (default: %(default)s)")
    parser.add_argument("--ratio", type=float, default=0.88, help="share evicted (default: %(default)s)")
    parser.add_argument("--layers", type=int, default=5, help="layers that are timed (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts (default: %(default)s)")
    parser.add_argument("--base", default="snapkv", help="what the wrappers wrap (default: %(default)s)")
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    model = load_model(options)
    report = BenchReport("scoring", vars(options))
    structure, tokenizer = model.subject.structure, model.subject.tokenizer
    (sample,) = make_samples(tokenizer, ("ruler:niah_single_2",), 1, options.length)
    prefill = float("inf")
    for _ in range(options.rounds):
        start = time.process_time()
        trace = record(structure, sample.context_ids)
        prefill = min(prefill, time.process_time() - start)
    names = [*builtin_policies(), *(f"{wrapper}({options.base})" for wrapper in builtin_wrappers())]
    policies = {name: load_policy(name) for name in names}
    keep = torch.full((structure.kv_heads,), keep_count(trace.tokens, options.ratio))
    timed = range(0, structure.layers, max(1, structure.layers // options.layers))
    best = {name: {index: float("inf") for index in timed} for name in names}
    for _ in range(options.rounds):
        for index, features in enumerate(layer_features(structure, tokenizer, trace)):
            for name, policy in policies.items() if index in timed else ():
                features.release()
                start = time.process_time()
                decide(policy, features, [keep])
                best[name][index] = min(best[name][index], time.process_time() - start)
    shares = {name: sum(of.values()) / len(timed) * structure.layers / prefill for name, of in best.items()}
    report.say(f"Prefill of {trace.tokens} tokens: {prefill:.2f} s; ratio {options.ratio}, layers {list(timed)}.")
    rows = []
    for name, share in sorted(shares.items(), key=lambda pair: pair[1]):
        spent, goal = share * prefill, TARGETS.get(name)
        layer = spent / structure.layers * 1e3
        rows.append([name, f"{layer:.1f}", f"{spent:.2f}", f"{share:.1%}", "—" if goal is None else f"{goal:.0%}"])
    report.table("Seconds of choosing", COLUMNS, rows)
    light = sum(shares[name] for name in LIGHT)
    report.say(f"{', '.join(sorted(LIGHT))} together: {light:.1%} of the prefill.")
    report.keep("prefill_seconds", prefill)
    report.keep("shares", shares)
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
