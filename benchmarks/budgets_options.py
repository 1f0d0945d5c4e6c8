"""The options of budgets_table.py, and what follows from them: lists of policies, and folders for runs."""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from pathlib import Path

from bench_report import RUNS
from subject import add_model_options

from cachecraft.budgets.settings import FITNESSES
from cachecraft.models import LoadedModel

OTHERS = ("uniform", "pyramid", "reversed_pyramid", "adaptive")
SCORINGS = ("likelihood", "answer")
TABLE_TASKS = "ruler:niah_single_1,ruler:niah_single_2,ruler:niah_multikey_1,ruler:niah_multivalue"


def parse_options(description: str | None) -> argparse.Namespace:
    """The command line's options."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--parts", default="allocations,table,headline", help="default: %(default)s")
    parser.add_argument("--scorers", default="knorm,keydiff,craft", help="not `headline` (default: %(default)s)")
    parser.add_argument("--targets", default="64,128", help="`table`: entries per kv head (default: %(default)s)")
    parser.add_argument("--tasks", default=TABLE_TASKS, help="`table` (default: %(default)s)")
    parser.add_argument("--policy", default="craft", help="`headline`: the scorer (default: %(default)s)")
    parser.add_argument("--ratios", default="0.88,0.95", help="not `table` (default: %(default)s)")
    parser.add_argument("--headline-tasks", default="ruler", help="tasks to choose the eligible from (default: ruler)")
    parser.add_argument("--divisions", default=",".join(OTHERS), help="beside EvolKV (default: %(default)s)")
    parser.add_argument("--references", help="lines beside them (default: full; `headline`: full,hindsight,random)")
    parser.add_argument("--table-scoring", choices=SCORINGS, default="likelihood", help="(default: %(default)s)")
    parser.add_argument("--allocation-scoring", choices=SCORINGS, default="answer", help="(default: %(default)s)")
    parser.add_argument("--data", action="append", default=[], help="files of questions and benchmarks; repeat")
    parser.add_argument("--skip-long", action="store_true", help="leave out benchmark items longer than the length")
    parser.add_argument("--length", type=int, default=1024, help="tokens of an item (default: %(default)s)")
    parser.add_argument("--search-samples", type=int, default=3, help="search items per task (default: %(default)s)")
    parser.add_argument("--iterations", type=int, default=10, help="generations of a group (default: %(default)s)")
    parser.add_argument("--population", type=int, help="candidates of a generation (default: 4 + 3 ln n)")
    parser.add_argument("--fitness", choices=FITNESSES, default="likelihood", help="(default: %(default)s)")
    parser.add_argument("--granularity", default="layer", help="layer or head (default: %(default)s)")
    parser.add_argument("--heads", default="alike", help="alike or adaptive (default: %(default)s)")
    parser.add_argument("--with-params", action="store_true", help="search the scorer's constants along")
    parser.add_argument("--samples", type=int, default=10, help="not `headline`: test items per task (%(default)s)")
    parser.add_argument("--headline-items", type=int, default=300, help="test items at least (default: %(default)s)")
    parser.add_argument("--validation", type=int, default=6, help="items that choose the tasks (default: %(default)s)")
    parser.add_argument("--runs", type=Path, default=RUNS / "budgets-table", help="where runs go (default: runs/...)")
    return parser.parse_args()


def specifications(text: str) -> list[str]:
    """The policies of a list with commas; a comma within a policy's parameters does not end it."""
    found: list[str] = []
    for part in text.split(","):
        if found and "=" in part and ":" not in part:
            found[-1] += f",{part}"
        else:
            found.append(part)
    return found


def divisions(options: argparse.Namespace) -> list[str]:
    """The allocations that EvolKV's budgets are set beside."""
    return [name for name in options.divisions.split(",") if name]


def folder(loaded: LoadedModel, options: argparse.Namespace, *words: str, **deciding: object) -> Path:
    """A run's folder: what it is, the model, the length, and a short hash of what else decides what is measured."""
    told = json.dumps(deciding | {"data": options.data, "skip_long": options.skip_long}, sort_keys=True, default=str)
    parts = [*words, loaded.name, str(options.length), hashlib.sha256(told.encode()).hexdigest()[:6]]
    return Path(options.runs) / "-".join(re.sub(r"[^A-Za-z0-9_.=]+", "_", part).strip("_") for part in parts)
