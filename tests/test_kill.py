"""kill -9 in the middle of a run: what was finished is there, the same settings complete the rest."""

from __future__ import annotations

import os
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from cachecraft.api import subject_of
from cachecraft.evaluation.cells import Budget
from cachecraft.evaluation.grid import evaluate
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.settings import Settings
from cachecraft.models import LoadedModel
from tests.forked import fork

pytestmark = pytest.mark.system

ITEMS, PER_ITEM = 6, 6  # knorm, full, hindsight and three random draws


def stored(folder: Path) -> dict[str, int]:
    """Result ids and the order in which they were written."""
    if not (folder / "run.sqlite").exists():
        return {}
    connection = sqlite3.connect(folder / "run.sqlite", timeout=10)
    try:
        return dict(connection.execute("SELECT id, rowid FROM results"))
    except sqlite3.OperationalError:  # the table is not there yet
        return {}
    finally:
        connection.close()


def measure(subject: Subject, folder: Path, pause: float = 0.0) -> None:
    asked = Settings(("knorm",), (Budget(ratio=0.5),), ("ruler:niah_single_1",), length=360, samples=ITEMS)
    evaluate(subject, asked, folder, progress=lambda _: time.sleep(pause))[0].close()


@pytest.mark.usefixtures("brief_answers")
@pytest.mark.skipif(os.name != "posix", reason="processes are forked")
def test_a_killed_run_loses_at_most_the_item_in_flight(tiny_llama, tiny_tokenizer, tmp_path: Path) -> None:
    subject = subject_of(LoadedModel(tiny_llama, tiny_tokenizer, "tiny", "r0", "float32", "cpu"))
    folder, log = tmp_path / "run", tmp_path / "log"
    process = fork(lambda: measure(subject, folder, 0.05), log)
    deadline = time.monotonic() + 120
    while len(stored(folder)) < 2 * PER_ITEM and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL, log.read_text()
    before = stored(folder)
    assert 0 < len(before) < ITEMS * PER_ITEM, log.read_text()
    assert len(before) % PER_ITEM == 0, "an item is stored whole or not at all"
    measure(subject, folder)
    after = stored(folder)
    assert len(after) == ITEMS * PER_ITEM
    assert {name: after[name] for name in before} == before, "nothing finished was measured again"
