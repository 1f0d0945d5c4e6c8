"""The README's table and picture: eviction policies × budgets at 1k and 2k tokens, with intervals.

Measured on the RULER tasks that the model can do: those whose full-cache score is at least one half on the validation
split at both lengths. Runs are kept in runs/readme-1k and runs/readme-2k, and a repeated call goes on where an
interrupted one stopped. Prints the table as Markdown; the picture is written as PNG and SVG.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench_report import RUNS, BenchReport
from eligible import able_tasks, following, short
from subject import add_model_options

from cachecraft import api
from cachecraft.models import load
from cachecraft.reporting.plots import plot_score_against_bytes
from cachecraft.reporting.summary import Summary
from cachecraft.reporting.tables import as_csv, markdown, notes
from cachecraft.terminal import one_sentence

POLICIES = (
    *("craft", "streaming_llm", "knorm", "keydiff", "vnorm"),
    *("value_diversity", "vk_ratio", "snapkv", "tova", "frc"),
)
KINDS = ("single_1", "single_2", "single_3", "multikey_1", "multikey_2", "multivalue", "multiquery")
TASKS = ",".join(f"ruler:niah_{kind}" for kind in KINDS)  # the default model does none of the others
RATIOS = (0.5, 0.75, 0.88)
PICTURE = Path(__file__).resolve().parents[1] / "docs" / "score_against_bytes"


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--samples", type=int, default=12, help="test items per task (default: %(default)s)")
    parser.add_argument("--validation", type=int, default=4, help="items that choose the tasks (default: %(default)s)")
    parser.add_argument("--lengths", default="1024,2048", help="tokens of an item (default: %(default)s)")
    parser.add_argument(
        "--tasks",
        default=TASKS,
        help="tasks or families to choose from (default: %(default)s)",
    )
    parser.add_argument("--policies", default=",".join(POLICIES), help="default: %(default)s")
    parser.add_argument("--ratios", default=",".join(map(str, RATIOS)), help="default: %(default)s")
    parser.add_argument("--runs", type=Path, default=RUNS, help="where run folders go (default: runs)")
    parser.add_argument("--picture", type=Path, default=PICTURE, help="file without ending (default: docs/...)")
    return parser.parse_args()


def folder(options: argparse.Namespace, length: int, suffix: str = "") -> Path:
    """The run folder of one length, such as runs/readme-1k."""
    path: Path = options.runs / f"readme-{short(length)}{suffix}"
    return path


def main() -> None:
    options = parse_options()
    lengths = [int(length) for length in options.lengths.split(",")]
    loaded = load(options.model, device="cpu", threads=options.threads, progress=print)
    report = BenchReport("readme-table", vars(options))
    probes = {length: folder(options, length, "-eligible") for length in lengths}
    able = able_tasks(loaded, report, options.tasks.split(","), probes, options.validation)
    summaries: list[Summary] = []
    for length in lengths:
        with report.progress() as bar:
            found = api.evaluate(
                loaded,
                policies=options.policies.split(","),
                ratios=[float(ratio) for ratio in options.ratios.split(",")],
                tasks=able,
                run=folder(options, length),
                length=length,
                samples=options.samples,
                progress=following(bar, f"{length} tokens"),
            )
        found.export()
        summary = found.summary()
        summaries.append(summary)
        report.say(f"\n### {length} tokens, {sum(summary.items.values())} items per cell\n")
        report.say(markdown(summary))
        for note in notes(summary, found.settings):
            report.say(note)
    files = [options.picture.with_suffix(ending) for ending in (".png", ".svg")]
    plot_score_against_bytes(summaries, files, titles=[f"{length} tokens" for length in lengths])
    report.say(f"\nPicture: {files[0]} and .svg")
    report.keep("tables", {str(length): as_csv([each]) for length, each in zip(lengths, summaries, strict=True)})
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
