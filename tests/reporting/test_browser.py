"""The report in a real browser: no console error, sorting, lineage, dark, a phone, paper, many candidates, attacks.

Runs where Debian's Chromium (or any found on the path) and playwright are installed, and is skipped by name elsewhere.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.synthetic_runs import ATTACK, BREAKOUT, add_batch, discovery_run
from tests.reporting.conftest import evaluation_run

from cachecraft.reporting.report.page import write_report
from cachecraft.reporting.watching import watching

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium (Debian: apt-get install chromium)"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(list(runs.values()), tmp_path_factory.mktemp("page") / "report.html")


class Opened:
    """A page, and everything that went wrong in it."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.wrong.append(f"alert {dialog.message}"), dialog.dismiss()))
        self.page.on("request", self.asked)
        self.page.goto(path.as_uri())

    def asked(self, request: Any) -> None:
        """A request to anywhere else is wrong."""
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.wrong.append(request.url)

    def __enter__(self) -> Any:
        return self.page

    def __exit__(self, kind: object, *rest: object) -> None:
        self.context.close()
        if kind is None:
            assert self.wrong == []


def test_a_reader_sorts_reads_items_and_walks_the_lineage(browser: Any, report: Path) -> None:
    with Opened(browser, report, viewport={"width": 1200, "height": 900}) as page:
        assert page.locator(".lineage .detail h4.chosen").count() == 1  # the best one, before anything is clicked
        dot = page.locator(".lineage .dot[data-n='30']")
        dot.evaluate("dot => dot.scrollIntoView({block: 'center'})")
        box = dot.bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        detail = page.locator(".lineage .detail")
        assert detail.locator("h4.chosen").inner_text() == "c0030"
        assert "part = 30 * f.keys" in detail.locator("pre .plus").first.inner_text()
        assert f"Weight 30 {BREAKOUT}" in detail.inner_text() and "mutate: shift weight" in detail.inner_text()
        assert detail.locator("table").first.locator("tbody tr").count() == 4
        parent = page.locator(".family .member:not(.chosen)").first.get_attribute("data-n")
        page.locator(".family .member:not(.chosen)").first.click()
        assert detail.locator("h4.chosen").inner_text() == f"c{int(parent):04d}"
        page.locator(".lineage svg[tabindex]").press("ArrowRight")
        assert detail.locator("h4.chosen").inner_text() == f"c{int(parent) + 1:04d}"
        table = page.locator("section#r0-0 table.sortable").first
        names = [ATTACK, "full", "keydiff", "lost"]
        table.locator("thead button").first.click()
        first = table.locator("tbody th").all_inner_texts()
        table.locator("thead button").first.click()
        assert first == table.locator("tbody th").all_inner_texts()[::-1] and sorted(first) == names
        page.get_by_text("Prompts, references and every answer").first.click()
        assert BREAKOUT in page.locator(".samples").first.inner_text()
        with page.expect_download() as saved:
            page.locator("button.csv:visible").first.click()
        assert "keydiff" in Path(saved.value.path()).read_text()


def test_dark_phone_and_paper(browser: Any, report: Path) -> None:
    light = "getComputedStyle(document.body).backgroundColor"
    with Opened(browser, report, viewport={"width": 390, "height": 844}, color_scheme="dark") as page:
        assert page.evaluate(light) == "rgb(20, 23, 28)"
        assert page.evaluate("document.documentElement.scrollWidth") <= 390  # wide parts scroll by themselves
        page.locator("#theme").click()
        assert page.evaluate(light) == "rgb(255, 255, 255)"
        paper = page.pdf()
        assert paper.startswith(b"%PDF") and len(paper) > 20_000
        page.locator("#theme").click()
        page.emulate_media(media="print")
        assert page.evaluate(light) == "rgb(255, 255, 255)"  # paper is white, whatever was chosen for the screen
        folded = "document.querySelectorAll('details:not([open], .screen)').length"
        before = page.evaluate(folded)
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        assert before and not page.evaluate(folded)
        page.evaluate("dispatchEvent(new Event('afterprint'))")
        assert page.evaluate(folded) == before


def test_missing_numbers_come_last_whichever_way_a_table_is_sorted(browser: Any, tmp_path: Path) -> None:
    run = evaluation_run(tmp_path / "run", scoring=["likelihood"])
    with Opened(browser, write_report([run], tmp_path / "report.html")) as page:
        table = page.locator("table[data-csv='r0-0-likelihood-table']")
        for way in ("descending", "ascending"):
            table.locator("thead button").nth(1).click()
            assert table.locator("thead th").nth(1).get_attribute("aria-sort") == way
            values = table.locator("tbody tr td:nth-child(2)").evaluate_all(
                "cells => cells.map(each => each.dataset.v)"
            )
            numbers = [float(value) for value in values[:-1]]
            assert values[-1] == "" and numbers == sorted(numbers, reverse=way == "descending") and numbers[0] < 0
        order = table.locator("tbody th").all_inner_texts()
        opened = page.locator("details[open] > summary", has_text="0.75 evicted")
        before = opened.count()
        opened.first.click()
        page.get_by_text("Prompts, references and every answer").click()
        page.locator("select[aria-label=policy]").select_option("keydiff")
        page.locator("select[aria-label=item]").select_option(label="vt, item 2")
        page.reload()
        assert table.locator("tbody th").all_inner_texts() == order  # what a reader chose is still so
        assert before > 1 and opened.count() == before - 1
        assert page.locator("select[aria-label=policy]").input_value() == "keydiff"
        assert page.locator("select[aria-label=item] option:checked").inner_text() == "vt, item 2"


def test_candidates_are_found_walked_and_listed(browser: Any, report: Path) -> None:
    with Opened(browser, report, viewport={"width": 1200, "height": 900}) as page:
        field, chosen = page.locator(".lineage input"), page.locator(".detail h4.chosen")
        field.fill("shift weight")
        seen = []
        for _ in range(33):  # of 40 candidates 8 are seeds
            field.press("Enter")
            page.wait_for_timeout(20)
            seen.append(chosen.inner_text())
        assert len(set(seen)) == 32 and seen[32] == seen[0]  # round to the first
        field.fill("no such words")
        field.press("Enter")
        said = page.locator(".lineage [role=status]")
        assert said.inner_text() == "No candidate holds “no such words”."
        field.fill("c0030")
        field.press("Enter")
        page.locator(".detail h4.chosen:text-is('c0030')").wait_for()
        member = page.locator(".family .member:not(.chosen)").first
        name = f"c{int(member.get_attribute('data-n')):04d}"
        member.press(" ")
        page.locator(f".detail h4.chosen:text-is('{name}')").wait_for()
        assert said.inner_text().startswith(f"{name}: ")
        assert page.evaluate("document.activeElement.classList.contains('chosen')")
        page.get_by_text("All candidates as a table").click()
        table = page.locator("table[data-csv='r1-1-candidates']")
        assert table.locator("tbody tr").count() == 40
        with page.expect_download() as saved:
            page.locator(".lineage details button.csv").click()
        assert Path(saved.value.path()).read_text().splitlines()[7].startswith("c0007,rejected,,,")


def test_a_reader_who_is_busy_is_told_of_a_new_page_and_not_disturbed(browser: Any, tmp_path: Path) -> None:
    folder = discovery_run(tmp_path / "run", 16)
    with watching([folder], 0) as server:
        server.page.clock = lambda: 1000 * time.monotonic()  # pages are made as soon as they are asked for
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        page = browser.new_page()
        try:
            page.goto(server.address)
            page.locator(".lineage input").fill("w")
            add_batch(folder)
            page.get_by_text("there is something new").wait_for(timeout=15_000)
            assert page.locator(".lineage circle, .lineage path.dot").count() == 16
            page.get_by_role("button", name="reload").click()
            page.locator(".dot[data-n='24']").wait_for(timeout=15_000)
        finally:
            page.close()
            server.shutdown()
            thread.join()


def test_five_thousand_candidates_are_usable_within_seconds(browser: Any, tmp_path: Path) -> None:
    path = write_report([discovery_run(tmp_path / "large", 5000)], tmp_path / "large.html")
    began = time.monotonic()
    with Opened(browser, path, viewport={"width": 1200, "height": 900}) as page:
        page.locator(".lineage input").fill("c4999")
        page.locator(".lineage input").press("Enter")
        page.locator(".detail h4.chosen:text-is('c4999')").wait_for()
        spent = time.monotonic() - began
        print(f"5,000 candidates: {path.stat().st_size / 1e6:.1f} MB, usable after {spent:.1f} s")
        assert spent < 15  # far less on a machine that does nothing else
