"""How commands talk to a person: one error sentence, a progress display, plain lines where there is no terminal."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from cachecraft.errors import CacheCraftError

if TYPE_CHECKING:
    from cachecraft.evaluation.settings import Progress as ItemProgress

BAD_INPUT, INTERRUPTED = 2, 130
PLAIN_SECONDS = 15.0  # between two lines of progress where there is no terminal

out = Console(soft_wrap=False, highlight=False)
err = Console(stderr=True, highlight=False)


@contextmanager
def one_sentence(kept: Callable[[], str] = lambda: "") -> Iterator[None]:
    """Turn errors that a person can mend into one sentence and exit code 2, and Ctrl-C into exit code 130.

    Args:
        kept: Says what is kept and how to go on, for the line after an interruption.
    """
    try:
        yield
    except CacheCraftError as error:
        err.print(f"[bold red]Error:[/] {_escaped(error)}", soft_wrap=True)
        raise SystemExit(BAD_INPUT) from None
    except KeyboardInterrupt:
        err.print(f"Interrupted. {_escaped(kept())}".rstrip(), soft_wrap=True)
        raise SystemExit(INTERRUPTED) from None
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
            raise
        where = f" {error.filename}" if error.filename else ""
        advice = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "choose a place you may write to"
        err.print(
            f"[bold red]Error:[/] {_escaped(error.strerror or error)}{_escaped(where)}; {advice} and run the "
            f"same command again. {_escaped(kept())}".rstrip(),
            soft_wrap=True,
        )
        raise SystemExit(BAD_INPUT) from None


def _escaped(text: object) -> str:
    from rich.markup import escape

    return escape(str(text))


def say(text: str) -> None:
    """One line of what is going on, on standard error."""
    err.print(_escaped(text), soft_wrap=True)


@contextmanager
def item_progress(what: str) -> Iterator[Callable[[ItemProgress], None]]:
    """Show how many items are done: a bar on a terminal, else a line now and then."""
    if not err.is_terminal or os.environ.get("NO_COLOR"):
        yield _plain(what)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("items,"),
        TimeRemainingColumn(compact=True),
        TextColumn("left"),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        line = bar.add_task(what, total=None)

        def update(progress: ItemProgress) -> None:
            bar.update(line, completed=progress.done, total=progress.total, description=progress.task)

        yield update


def _plain(what: str) -> Callable[[ItemProgress], None]:
    last = time.monotonic()

    def update(progress: ItemProgress) -> None:
        nonlocal last
        if progress.done == progress.total or time.monotonic() - last >= PLAIN_SECONDS:
            last = time.monotonic()
            print(f"{what}: {progress.done} of {progress.total} items", file=sys.stderr, flush=True)

    return update
