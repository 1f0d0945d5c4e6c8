"""Puts a report together: reads runs, renders the templates, and writes one file that needs nothing else.

Everything that comes from a run is text: Jinja escapes it, data for the scripts is JSON with no `<` in it, and the
page's own policy allows no script but the one it was made with, and no connection.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cachecraft.errors import RunError
from cachecraft.evaluation.rows import folder_names
from cachecraft.reporting.report.budgets import BudgetSection, budget_section
from cachecraft.reporting.report.discovery import DiscoverySection, discovery_section
from cachecraft.reporting.report.evaluation import EvaluationSection, evaluation_section
from cachecraft.reporting.report.positions import PositionSection, position_section
from cachecraft.reporting.report.runs import RunFolder, opened, parts

PAGE = Path(__file__).parent / "page"
SCRIPTS = ("report.js", "candidate.js", "lineage.js", "positions.js")
FILE = "report.html"


@dataclass(frozen=True)
class RunPart:
    """What the page says of one run.

    Attributes:
        key: Its anchor.
        name: Its title.
        settings: Names and values of run.yaml.
        empty: What to say where there is nothing to show; "" otherwise.
    """

    key: str
    name: str
    settings: tuple[tuple[str, str], ...]
    budgets: BudgetSection | None
    discovery: DiscoverySection | None
    evaluation: EvaluationSection | None
    positions: PositionSection | None
    empty: str


def build_report(folders: Sequence[Path], *, version: str = "") -> str:
    """The page about runs.

    Args:
        folders: Folders of runs; evaluations inside a discovery's are shown with it.
        version: For a page that is served and follows its run: what tells this page from the next; "" for a file.

    Raises:
        RunError: A folder is no run, or cannot be read.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    names = folder_names(folders)
    runs = [part for place, folder in enumerate(folders) for part in _parts(folder, f"r{place}", names[place])]
    environment = Environment(
        loader=FileSystemLoader(PAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    script = "\n".join((PAGE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    script = f"(() => {{\n{script}\n}})();\n"
    page = environment.get_template("page.html.j2").render(
        title=f"{', '.join(names)} · CacheCraft",
        runs=runs,
        css=Markup((PAGE / "report.css").read_text(encoding="utf-8")),
        script=Markup(script),
        policy=_content_policy(script, live=bool(version)),
        version=version,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        made_by=_own_version(),
    )
    return page.replace("\x00", "�")


def write_report(folders: Sequence[Path], path: Path) -> Path:
    """Write the page about runs, whole or not at all.

    Args:
        folders: As in `build_report`.
        path: The file; one that is there is replaced.

    Returns:
        The file.

    Raises:
        RunError: A folder is no run, or the file cannot be written.
    """
    page = build_report(folders)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(page, encoding="utf-8", errors="replace")
        os.replace(partial, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise RunError(
            f"The report {path} cannot be written ({error.strerror}); `cachecraft report RUN -o FILE` writes another."
        ) from error
    return path


def _content_policy(script: str, *, live: bool) -> str:
    """No script but ours, no connection but, for a page that is served, to where it came from."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    connect = "'self'" if live else "'none'"
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )


def _parts(folder: Path, key: str, called: str) -> list[RunPart]:
    """A run and the evaluations inside it."""
    found = []
    for place, own in enumerate(parts(folder)):
        with opened(own) as run:
            name = called if own == folder else f"{called} · {own.name}"
            found.append(_part(run, f"{key}-{place}", name))
    found.sort(key=lambda part: part.name != called)  # the run itself comes first
    return found


def _part(run: RunFolder, key: str, name: str) -> RunPart:
    budgets, discovery = budget_section(run, key), discovery_section(run, key)
    evaluation, positions = evaluation_section(run, key), position_section(run.folder)
    nothing = budgets is None and discovery is None and evaluation is None
    empty = "This run holds nothing yet that a report could show." if nothing else ""
    return RunPart(key, name, _flat(run.settings), budgets, discovery, evaluation, positions, empty)


def _flat(settings: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    found: list[tuple[str, str]] = []
    for name, value in settings.items():
        if isinstance(value, dict):
            found += [(f"{name}: {key}", str(own)) for key, own in value.items()]
        elif isinstance(value, list):
            found.append((str(name), ", ".join(map(str, value)) or "none"))
        else:
            found.append((str(name), "none" if value is None else str(value)))
    return tuple(found)


def _own_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("cachecraft-kv")
    except PackageNotFoundError:  # run from the source tree
        return "(from source)"
