"""The command line in this process: what a person types, its exit code and what it prints."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from cachecraft.cli import app


def run(*arguments: str | Path) -> tuple[int, str]:
    """Exit code and output of a command; what it raises that is no exit is raised here."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output
