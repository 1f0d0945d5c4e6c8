"""Where a program comes from: its ancestors with diffs and scores, and files that say so.

An exported file is the candidate's program with its provenance at the end of the docstring, so that it loads and reads
like any other policy. A file of the user's is never overwritten silently.
"""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cachecraft.errors import RunError
from cachecraft.evolution.program import lines_of
from cachecraft.evolution.records import Candidate, Score

WIDTH = 100


@dataclass(frozen=True)
class Step:
    """One candidate of a line of descent.

    Attributes:
        candidate: The candidate.
        parent: The parent that it is compared with, the first of its parents; None for one that has none.
        diff: Unified diff from the parent's program to its own, "" without a parent.
    """

    candidate: Candidate
    parent: Candidate | None
    diff: str


def lineage(candidates: Mapping[int, Candidate], number: int) -> list[Step]:
    """A candidate and all its ancestors, the youngest first.

    Args:
        candidates: The population's candidates.
        number: Whose lineage.

    Raises:
        RunError: There is no such candidate.
    """
    if number not in candidates:
        raise RunError(f"There is no candidate {number} in this run; it has {len(candidates)}.")
    found: dict[int, Step] = {}
    waiting = [number]
    while waiting:
        each = candidates[waiting.pop()]
        if each.number in found:
            continue
        parents = [candidates[parent] for parent in each.proposal.parents if parent in candidates]
        first = parents[0] if parents else None
        found[each.number] = Step(each, first, diff(first, each) if first else "")
        waiting += [parent.number for parent in parents]
    return [found[key] for key in sorted(found, reverse=True)]


def diff(parent: Candidate, child: Candidate) -> str:
    """Unified diff of two candidates' programs."""
    lines = difflib.unified_diff(
        parent.source.splitlines(), child.source.splitlines(), parent.name, child.name, lineterm="", n=2
    )
    return "\n".join(lines)


def provenance(
    candidate: Candidate, scores: Sequence[Score], *, run: str, seed: int, models: Sequence[str]
) -> list[tuple[str, str]]:
    """What an exported file says of where it comes from.

    Args:
        candidate: The candidate.
        scores: What was measured of it; the last stage's means by task are told.
        run: The run's name.
        seed: The run's seed.
        models: Names of the models that it was measured on.
    """
    parents = ", ".join(f"c{number:04d}" for number in candidate.proposal.parents) or "none"
    found = [
        ("run", f"{run}, seed {seed}"),
        ("candidate", f"{candidate.name}, generation {candidate.generation}, {candidate.proposal.proposer}"),
        ("parents", parents),
        ("made by", f"{candidate.proposal.operator}: {candidate.proposal.note}"),
        ("models", ", ".join(models)),
    ]
    if candidate.fitness is not None:
        found.append(("fitness", f"{candidate.fitness.mean:.4f} over {candidate.fitness.items} items"))
    last = [each for each in scores if each.stage == candidate.stage]
    for task in dict.fromkeys(each.task for each in last):
        own = [each for each in last if each.task == task]
        items = sum(each.items for each in own)
        mean = sum(each.value * each.items for each in own) / items
        found.append((task, f"{mean:.4f} over {items} measurements at {', '.join(sorted({e.budget for e in own}))}"))
    return found


def with_provenance(source: str, provenance: Sequence[tuple[str, str]]) -> str:
    """The program with lines of provenance at the end of its docstring.

    Args:
        source: A policy.
        provenance: Names and values, for example ``("run", "runs/d1")``.

    Returns:
        The text of a file; its program is the same, its first line too.
    """
    document = ast.get_docstring(ast.parse(source)) or "A discovered eviction policy."
    wide = max(len(name) for name, _ in provenance) if provenance else 0
    block = ["Found by CacheCraft:", *(_line(name, value, wide) for name, value in provenance)]
    text = _quoted("\n".join([document, "", *block]))
    lines = lines_of(source)
    first = ast.parse(source).body[0]
    if ast.get_docstring(ast.parse(source)) is None:
        return f'"""{text}\n"""\n\n{source}'
    assert first.end_lineno is not None
    assert first.end_col_offset is not None
    rest = lines[first.end_lineno - 1].encode()[first.end_col_offset :].decode()
    return "".join(lines[: first.lineno - 1]) + f'"""{text}\n"""{rest}' + "".join(lines[first.end_lineno :])


def _line(name: str, value: str, wide: int) -> str:
    """One line of provenance; the values of long ones go on under their beginning."""
    indent = " " * (wide + 4)
    words = " ".join(value.split()).split(" ")
    lines = [f"  {name:<{wide}}  ".ljust(wide + 4)]
    for word in words:
        if len(lines[-1]) + len(word) > WIDTH and lines[-1].strip():
            lines.append(indent)
        lines[-1] += word + " "
    return "\n".join(line.rstrip() for line in lines)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''").removesuffix('"')


def export(path: Path, text: str, *, overwrite: bool = False) -> Path:
    """Write a file whole or not at all.

    Args:
        path: Where to; its folder is made.
        text: What to write.
        overwrite: Replace a file with other contents.

    Raises:
        RunError: A file with other contents is there, or the folder cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_text(encoding="utf-8", errors="replace") == text:
            return path
        _write(path, partial, text, overwrite)
    except OSError as error:
        if path.exists() and isinstance(error, FileExistsError):
            raise RunError(f"{path} exists and was not overwritten; name another file or remove it.") from error
        raise RunError(f"{path} could not be written ({error.strerror or error}).") from error
    return path


def _write(path: Path, partial: Path, text: str, overwrite: bool) -> None:
    try:
        partial.write_text(text, encoding="utf-8")
        if not overwrite:
            path.open("x").close()  # fails where a file is, even one that was made this moment
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
