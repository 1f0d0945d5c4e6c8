"""What a row of a table is: one program under one name, from folders that can be told apart.

A label is what a person called a policy. Two programs may bear it: a file before and after an edit, a budgets file
that was searched again. They are two rows, and only then does the name say which is which. Nothing is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachecraft.evaluation.store import Result

RANDOM = "random"  # a line whose draws are programs of their own and one row together
_SHORT = 8  # digits of an id that are shown, or more where these do not tell two apart

Program = tuple[str, str]  # label and policy id


def told_apart(results: Iterable[Result]) -> list[Result]:
    """The results, each under the name of its row: the label, and a short id where programs share the label."""
    held = list(results)
    names = row_names((each.label, each.policy) for each in held)
    return [
        each if names[each.label, each.policy] == each.label else replace(each, label=names[each.label, each.policy])
        for each in held
    ]


def row_names(programs: Iterable[Program]) -> dict[Program, str]:
    """The name of each program's row."""
    return {
        (label, policy): f"{label} ({short})" if short else label
        for label, ids in by_label(programs).items()
        for policy, short in _short_ids(ids, label).items()
    }


def names_in_folders(where: Mapping[Program, set[str]]) -> dict[Program, str]:
    """The names of rows of several folders, by the folder where each of a label's programs has one of its own.

    Args:
        where: For each program the folders that hold it, as `folder_names` calls them.
    """
    names = row_names(where)
    for label, ids in by_label(where).items():
        folders = set().union(*(where[label, policy] for policy in ids))
        own = all(len(where[label, policy]) == 1 for policy in ids) and len(folders) == len(ids)
        if len(ids) > 1 and label != RANDOM and own:
            names |= {(label, policy): f"{label} ({min(where[label, policy])})" for policy in ids}
    return names


def folder_names(folders: Sequence[Path]) -> list[str]:
    """The last name of each folder, and as much of its path before it as makes it unlike the others."""
    whole = [folder.resolve().parts for folder in folders]
    names = []
    for own in whole:
        most = next(n for n in range(1, len(own) + 1) if all(each == own or each[-n:] != own[-n:] for each in whole))
        names.append("/".join(own[-most:]))
    return names


def clusters_of(results: Iterable[Result]) -> dict[str, str]:
    """Item id to the document of its task that it shares with others, or with itself at another length."""
    found: dict[str, str] = {}
    for each in results:
        if each.cluster != each.item or each.item not in found:  # a run of before may not have known the document
            found[each.item] = f"{each.task}\0{each.cluster}"
    return found


def rejections(results: Iterable[Result]) -> dict[tuple[str, str], str]:
    """Label and budget of what was rejected on some item, with the first reason: its other items are the easy ones."""
    found: dict[tuple[str, str], str] = {}
    for each in results:
        if each.state != "ok":
            found.setdefault((each.label, each.budget), each.reason)
    return found


def scoring_of(settings: Mapping[str, Any], results: Iterable[Result]) -> str:
    """The first of a run's scorings that these of its results hold, or its first if they hold none."""
    held = {each.scoring for each in results}
    return str(next((each for each in settings["scoring"] if each in held), settings["scoring"][0]))


def by_label(programs: Iterable[Program]) -> dict[str, list[str]]:
    """The different programs of each label, in their order."""
    found: dict[str, dict[str, None]] = {}
    for label, policy in programs:
        found.setdefault(label, {})[policy] = None
    return {label: list(ids) for label, ids in found.items()}


def _short_ids(ids: Sequence[str], label: str) -> dict[str, str]:
    """For each id as many of its digits as tell it from the others; "" where there is nothing to tell apart."""
    if len(ids) == 1 or label == RANDOM:
        return dict.fromkeys(ids, "")
    digits = next(n for n in range(_SHORT, max(map(len, ids)) + _SHORT) if len({each[:n] for each in ids}) == len(ids))
    return {each: each[:digits] for each in ids}
