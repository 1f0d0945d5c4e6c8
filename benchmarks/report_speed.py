"""What the report of a discovery costs: seconds to build it, its size, its time in a browser, and what `watch` takes.

The runs are made up (`synthetic_runs.py`): programs of 43 lines that share nearly all of them, four scores each. Times
in headless Chromium are those of the first contentful paint, and from opening the file until the last candidate, typed
into the page's field, is shown. `watch` is a process of its own whose page is polled as a browser does, while the run
grows by a batch every few seconds; its share is processor time over wall time once it has served its first page.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from bench_report import BenchReport
from synthetic_runs import add_batch, discovery_run

from cachecraft.errors import CacheCraftError
from cachecraft.reporting.report.page import write_report
from cachecraft.terminal import one_sentence

TARGETS = {600: (5.0, 6.0, 1.0, None), 5000: (None, None, None, 3.0)}  # build, MB, first paint, usable
ALLOWED_SHARE = 0.02  # of one processor, for `watch`
POLL = 3.0  # seconds between two questions of a page
COLUMNS = ("candidates", "build, s", "MB", "first paint, s", "usable, s", "missed")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--candidates", default="600,5000", help="sizes of the runs (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of each time, whose median counts")
    parser.add_argument("--watched", type=int, default=600, help="candidates of the run that is watched")
    parser.add_argument("--seconds", type=float, default=180.0, help="for which it is watched (default: %(default)s)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two of its batches")
    parser.add_argument("--parts", default="page,watch", help="which parts to run (default: %(default)s)")
    return parser.parse_args()


def built(run: Path, path: Path, repeats: int) -> float:
    """Seconds to read a run and write its report."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        write_report([run], path)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def shown(browser: Any, path: Path, last: int) -> tuple[float, float]:
    """Seconds until a report is painted first, and until its last candidate can be shown."""
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    page = context.new_page()
    began = time.perf_counter()
    page.goto(path.as_uri())
    page.locator(".lineage input").fill(f"c{last:04d}")
    page.locator(".lineage input").press("Enter")
    page.locator(f".detail h4.chosen:text-is('c{last:04d}')").wait_for()
    usable = time.perf_counter() - began
    painted = page.wait_for_function("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
    first = painted.json_value() / 1000
    context.close()
    return first, usable


def in_browser(paths: dict[int, Path], repeats: int) -> dict[int, tuple[float, float]]:
    """Medians of `shown` by number of candidates; none where there is no browser."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        chromium = None
    if chromium is None:
        return {}
    found = {}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for count, path in paths.items():
            times = [shown(browser, path, count) for _ in range(repeats)]
            found[count] = (statistics.median(a for a, _ in times), statistics.median(b for _, b in times))
        browser.close()
    return found


def report_pages(report: BenchReport, folder: Path, options: argparse.Namespace) -> None:
    write_report([discovery_run(folder / "first", 8)], folder / "first.html")  # libraries are loaded on first use
    builds, paths = {}, {}
    for count in map(int, options.candidates.split(",")):
        paths[count] = folder / f"{count}.html"
        builds[count] = built(discovery_run(folder / str(count), count), paths[count], options.repeats)
    times = in_browser(paths, options.repeats)
    if not times:
        report.say("Times in a browser are skipped: they need Chromium and playwright.")
    rows, kept = [], {}
    for count, path in paths.items():
        numbers = (builds[count], path.stat().st_size / 1e6, *times.get(count, (None, None)))
        kept[count] = dict(zip(("build", "megabytes", "first_paint", "usable"), numbers, strict=True))
        limits = TARGETS.get(count, (None,) * 4)
        missed = [
            name
            for name, number, limit in zip(COLUMNS[1:5], numbers, limits, strict=True)
            if limit is not None and number is not None and number > limit
        ]
        texts = ["—" if number is None else f"{number:.2f}" for number in numbers]
        rows.append([f"{count:,}", *texts, "; ".join(missed) or "—"])
    report.keep("pages", kept)
    report.table(f"Reports of discoveries; medians of {options.repeats}", COLUMNS, rows)


def asked(address: str, path: str) -> bytes:
    """What `watch` answers."""
    place = urlsplit(address)
    connection = http.client.HTTPConnection(str(place.hostname), place.port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def watched(run: Path, seconds: float, every: float) -> dict[str, Any]:
    """What watching a run that grows takes of one processor, and how many pages it made."""
    command = [sys.executable, "-m", "cachecraft", "watch", str(run), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"COLUMNS": "400"})
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if "http://" not in line:
            raise CacheCraftError("`cachecraft watch` did not begin; see its error above.")
        address = next(word for word in line.split() if word.startswith("http://"))
        asked(address, "/")
        seen, pages = json.loads(asked(address, "/state"))["version"], 0
        watcher, began = psutil.Process(process.pid), time.perf_counter()
        before, grown = sum(watcher.cpu_times()[:2]), began
        while time.perf_counter() - began < seconds:
            time.sleep(POLL)
            if time.perf_counter() - grown >= every:
                add_batch(run)
                grown = time.perf_counter()
            version = json.loads(asked(address, "/state"))["version"]
            if version != seen:
                seen, pages = version, pages + 1
                asked(address, "/")
        wall = time.perf_counter() - began
        return {"share": (sum(watcher.cpu_times()[:2]) - before) / wall, "pages": pages, "seconds": wall}
    finally:
        process.terminate()
        process.wait()


def report_watch(report: BenchReport, folder: Path, options: argparse.Namespace) -> None:
    found = watched(discovery_run(folder / "watched", options.watched), options.seconds, options.every)
    report.keep("watch", found)
    verdict = "" if found["share"] <= ALLOWED_SHARE else ", MISSED"
    report.say(
        f"watch: {found['share']:.2%} of one processor over {found['seconds']:.0f} s and {found['pages']} new pages "
        f"of a run of {options.watched} candidates that grows every {options.every:g} s (allowed {ALLOWED_SHARE:.0%}"
        f"{verdict})"
    )


def main() -> None:
    options = parse_options()
    report = BenchReport("report-speed", vars(options))
    parts = options.parts.split(",")
    with tempfile.TemporaryDirectory() as folder:
        if "page" in parts:
            report_pages(report, Path(folder), options)
        if "watch" in parts:
            report_watch(report, Path(folder), options)
    report.say(f"Command: {' '.join(['benchmarks/report_speed.py', *sys.argv[1:]])}")
    report.close()


if __name__ == "__main__":
    with one_sentence():
        main()
