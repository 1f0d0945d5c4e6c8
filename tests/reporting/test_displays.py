"""Live displays: one at a time on a terminal, plain lines where there is none or NO_COLOR is set."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cachecraft import cli_discover, terminal
from cachecraft.reporting.budgets import budget_display
from cachecraft.reporting.search import search_display

SEARCHED = SimpleNamespace(phase="recording", share=0.5)
BUDGETS = SimpleNamespace(what="uniform", share=0.5)
ITEMS = SimpleNamespace(done=1, total=1, task="ruler:vt")
Show = Callable[[Any], AbstractContextManager[Callable[[Any], None]]]


class Terminal(Console):
    """A terminal on which one live display has room."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO(), force_terminal=True, width=80)
        self.shown = 0

    def set_live(self, live: Any) -> Any:
        self.shown += 1
        assert self.shown == 1
        return super().set_live(live)

    def clear_live(self) -> None:
        self.shown -= 1
        super().clear_live()


@pytest.mark.parametrize(
    ("show", "seen", "line"),
    [
        (search_display, SEARCHED, "Recording items …"),
        (budget_display, BUDGETS, "table: uniform"),
        (lambda _: terminal.item_progress("test"), ITEMS, "test: 1 of 1 items"),
    ],
)
@pytest.mark.parametrize("plain", [True, False])
def test_no_color_makes_plain_lines_of_a_live_display(
    show: Show, seen: Any, line: str, plain: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NO_COLOR", "1" if plain else "")
    monkeypatch.setenv("TERM", "xterm")
    console = Terminal()
    monkeypatch.setattr(terminal, "err", console)
    with show(console) as update:
        assert console.shown == int(not plain)
        update(seen)
    told = console.file.getvalue() + capsys.readouterr().err  # type: ignore[attr-defined]
    assert ("\x1b[" in told) is not plain
    assert line in told or not plain


def test_a_discovery_shows_its_test_in_place_of_its_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    console = Terminal()
    for module in (terminal, cli_discover):
        monkeypatch.setattr(module, "err", console)
    with cli_discover._displays() as (search, test):
        search(SEARCHED)  # type: ignore[arg-type]
        test(ITEMS)  # type: ignore[arg-type]
        test(ITEMS)  # type: ignore[arg-type]
        assert console.shown == 1
    assert console.shown == 0
