"""The layering of the package, read from its imports: a lower layer never imports a higher one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "cachecraft"

# What each part of the package may import of the others; every part may import `errors` and itself;
# `chat` is a leaf like `errors`: what a model wants around a text, which tasks and runtime both need.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "chat": set(),
    "policy": set(),
    "policies": {"policy"},
    "runtime": {"policy", "chat"},
    "tasks": {"chat"},
    "evaluation": {"runtime", "policy", "sandbox", "tasks", "chat"},
    "sandbox": {"policy"},
    "evolution": {"evaluation", "runtime", "policy", "policies", "sandbox", "tasks", "chat"},
    "budgets": {"evaluation", "runtime", "policy", "tasks", "chat"},
    "reporting": {"evaluation", "evolution", "budgets", "policy", "tasks"},
    "models": {"runtime"},
}
# These stand on top: the public API and what a person runs.
ON_TOP = {
    *("__init__", "__main__", "answering", "api", "budgeting", "demo", "discovery", "positions", "terminal"),
    *("cli", "cli_budgets", "cli_discover", "cli_generate", "cli_report", "cli_results"),
}
# The one door through which models may look into the runtime.
ONLY_THROUGH = {("models", "runtime"): "cachecraft.runtime.compat"}


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def is_module(dotted: str) -> bool:
    path = ROOT / "src" / Path(*dotted.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def own_imports(path: Path, text: str) -> Iterator[str]:
    """Full dotted names of our modules that the text of a file imports, wherever the import stands."""
    package = ("cachecraft", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "cachecraft")
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*above, *(node.module or "").split("."))).strip(".")
            if base.split(".")[0] != "cachecraft":
                continue
            for alias in node.names:
                full = f"{base}.{alias.name}"
                yield full if is_module(full) else base


FILES = sorted(SOURCE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_from_the_layers_below_it(path: Path) -> None:
    part = part_of(path)
    if part in ON_TOP:
        return
    assert part in MAY_IMPORT, f"say in tests/test_layers.py what the new part {part!r} may import"
    for name in own_imports(path, path.read_text(encoding="utf-8")):
        pieces = name.split(".")
        assert len(pieces) > 1, f"{path} imports the public API, which stands above it"
        target = pieces[1]
        assert target in MAY_IMPORT[part] | {part, "errors"}, f"{part} may not import {name}"
        door = ONLY_THROUGH.get((part, target))
        assert door is None or name.startswith(door), f"{part} may import {door} only, not {name}"


def test_the_import_reader_sees_every_way_of_importing() -> None:
    lines = [
        "import cachecraft.tasks",
        "from cachecraft import errors",
        "from ..evaluation import grid",
        "from . import features",
        "def late():\n    import cachecraft.models",
        "import torch",
    ]
    seen = own_imports(SOURCE / "policy" / "imagined.py", "\n".join(lines))
    assert {".".join(name.split(".")[:2]) for name in seen} == {
        f"cachecraft.{part}" for part in ("tasks", "errors", "evaluation", "policy", "models")
    }


def test_no_file_names_a_registrys_host() -> None:
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("npmjs", "com"), ("npmjs", "org"))]
    hosts.append("python" + "hosted")
    own = [*FILES, *sorted((ROOT / "tests").rglob("*.py")), *sorted(ROOT.glob("*.*")), ROOT / "Makefile"]
    named = [
        f"{path.relative_to(ROOT)}: {host}"
        for path in own
        if path.is_file()
        for host in hosts
        if host in path.read_text(encoding="utf-8", errors="replace")
    ]
    assert named == []
