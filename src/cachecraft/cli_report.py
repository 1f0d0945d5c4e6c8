"""`cachecraft report` writes what a run holds as one HTML file; `cachecraft watch` shows it and follows the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cachecraft.errors import CacheCraftError, RunError
from cachecraft.terminal import one_sentence, out, say

report_app = typer.Typer()
Runs = Annotated[list[Path], typer.Argument(help="Folders of runs: evaluations, discoveries, searches of budgets.")]


@report_app.command()
def report(
    runs: Runs,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file; report.html in the run's folder when missing.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Also measure which positions policies keep on an item, on this model.")
    ] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Of these policies, with --model; repeat for more.")] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads, with --model.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Try a model class that was not tested.")] = False,
    trust: Annotated[bool, typer.Option("--trust", help="With --model: run policy files in this process.")] = False,
) -> None:
    """Write a run's report: one HTML file that needs no server and no network."""
    with one_sentence():
        from cachecraft.reporting.report.page import FILE, write_report

        if model is None and policy:
            raise RunError(f"--policy {policy[0]} is for the positions that --model measures; give --model, too.")
        if output is not None and output.is_dir():
            raise RunError(f"{output} is a folder; name a file, such as {output / FILE}.")
        if model is not None:
            from cachecraft.cli import _load
            from cachecraft.positions import keep_positions

            loaded = _load(model, "auto", "auto", threads, None)
            for run in runs:
                say(f"{run}: which positions are kept …")
                keep_positions(run, loaded, policies=policy, force=force, trust=trust)
        path = output or (runs[0] / FILE if len(runs) == 1 else Path(FILE))
        write_report(runs, path)
        out.print(f"Report: {path} ({path.stat().st_size / 1e6:.1f} MB)", markup=False, soft_wrap=True)


@report_app.command()
def watch(
    run: Annotated[Path, typer.Argument(help="Folder of a run, finished or going on.")],
    port: Annotated[int, typer.Option(help="On 127.0.0.1; 0 for any free one.")] = 8765,
) -> None:
    """Show a run's report in your browser and follow the run while it goes on; Ctrl-C ends it."""
    with one_sentence(lambda: "The run itself is not touched."):
        from cachecraft.reporting.watching import step_back, watching

        step_back()
        with watching([run], port) as server:
            out.print(f"Watching {run} at {server.address} (Ctrl-C ends it)", markup=False, soft_wrap=True)
            server.serve_forever(poll_interval=0.5)


def report_beside(folder: Path) -> list[Path]:
    """Write a run's report into its folder, as commands do at their end.

    Returns:
        The report; nothing where it cannot be made, which is said: all else that the command did stands.
    """
    from cachecraft.reporting.report.page import FILE, write_report

    try:
        return [write_report([folder], folder / FILE)]
    except CacheCraftError as error:
        say(f"Warning: {error}")
        return []
