"""What every benchmark prints and leaves behind: the machine, its tables, and a JSON file under runs/bench-*/."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

RUNS = Path(__file__).resolve().parents[1] / "runs"
WIDTH = 118  # columns where output is not a terminal, such as a log


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """What a number depends on besides the code."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }


class BenchReport:
    """Prints as it goes and keeps everything for the JSON file."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        """Open `runs/bench-NAME-MOMENT/` and print what is measured on what."""
        moment = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        self.folder = RUNS / f"bench-{name}-{moment}"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.console = Console()
        if not self.console.is_terminal:
            self.console = Console(width=WIDTH)
        self._record: dict[str, Any] = {
            "benchmark": name,
            "machine": machine(),
            "settings": {key: str(value) if isinstance(value, Path) else value for key, value in settings.items()},
        }
        of = self._record["machine"]
        self.say(
            f"{name} · {of['date']} · {of['processor']}, {of['threads']} threads of {of['cores']} cores, "
            f"{of['memory_gb']} GB · torch {of['torch']}, transformers {of['transformers']}"
        )

    def say(self, text: str) -> None:
        """Print a line; a terminal breaks it, nothing else does."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Print a table; the first column is left-aligned, the others right."""
        table = Table(title=title, title_justify="left", title_style="bold")
        for index, column in enumerate(columns):
            table.add_column(column, justify="left" if index == 0 else "right", no_wrap=index == 0)
        for row in rows:
            table.add_row(*[value if isinstance(value, str) else f"{value:,}" for value in row])
        self.console.print(table)

    def keep(self, name: str, value: Any) -> None:
        """Put a value into the JSON file, which is written anew each time so that an interrupted run leaves it."""
        self._record[name] = value
        partial = self.folder / ".results.json"
        partial.write_text(json.dumps(self._record, indent=1))
        partial.replace(self.folder / "results.json")

    def progress(self) -> Progress:
        """A progress bar, to be used in a `with` block; it disappears when it is done."""
        return Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )

    def close(self) -> None:
        """Say where the numbers are."""
        self.say(f"Numbers: {self.folder / 'results.json'}")
