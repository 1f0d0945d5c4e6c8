"""kill -9 in the middle of a run: what was finished is there, the same command completes the rest."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

from tests.conftest import build_model, build_tokenizer


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


def test_a_killed_run_loses_at_most_the_item_in_flight(tmp_path: Path) -> None:
    model, folder = tmp_path / "model", tmp_path / "run"
    build_model("llama").save_pretrained(model)
    build_tokenizer().save_pretrained(model)
    command = [sys.executable, "-m", "cachecraft.cli", "evaluate", "--model", str(model), "--policy", "knorm"]
    command += ["--ratio", "0.5", "--length", "700", "--samples", "6", "--threads", "1", "--run", str(folder)]
    environment = os.environ | {"CACHECRAFT_HOME": str(tmp_path / "home")}
    log = tmp_path / "log"
    with log.open("w") as told:
        process = subprocess.Popen(command, env=environment, stdout=told, stderr=told)
    deadline = time.monotonic() + 120
    while len(stored(folder)) < 12 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = stored(folder)
    per_item = 6  # knorm, full, hindsight and three random draws
    assert 0 < len(before) <= 6 * per_item, log.read_text()
    assert len(before) % per_item == 0, "an item is stored whole or not at all"
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0, again.stderr
    after = stored(folder)
    assert len(after) == 6 * per_item
    assert {name: after[name] for name in before} == before, "nothing finished was measured again"
