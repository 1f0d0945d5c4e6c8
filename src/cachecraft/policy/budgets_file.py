"""The file of a model's budgets, `budgets.json`: what a search found, or a few numbers that a person wrote.

`{"format": "cachecraft-budgets-1", "budgets": [96, 160, …]}` is a whole file: for each compressed layer what it keeps
per kv head, or a list with a number for each kv head. The numbers count in proportion: they are completed to whatever
budget is asked for. Everything else in the file says where they come from and is for people to read.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cachecraft.errors import BudgetError, UnknownNameError
from cachecraft.policy.allocation import NAMES, Allocation

Numbers = list[int | float] | list[list[int | float]]  # a number for each layer, or one for each of its kv heads

FORMAT: Literal["cachecraft-budgets-1"] = "cachecraft-budgets-1"
FILE_NAME = "budgets.json"
SHIPPED = Path(__file__).resolve().parent.parent / "policies" / "budgets"  # files that are named without their ending
MOST = 1e12  # entries; what is beyond has no meaning and may overflow


class Row(BaseModel):
    """One line of a search's table: a division and its fitness, from 0 to 1, on search and on validation items.

    `note` says what of the division had to give way on some item.
    """

    model_config = ConfigDict(extra="forbid")

    name: str
    search: float
    validation: float | None = None
    note: str | None = None


class BudgetsFile(BaseModel):
    """What the file holds.

    Attributes:
        format: The version of its form.
        budgets: For each compressed layer a number, or one for each kv head; finite, at least 0, not all 0.
        model, policy, policy_id: What they were searched for; the policy with the constants found, and its id.
        granularity: Whether layers or kv heads have budgets of their own.
        heads: Whether the heads of a layer keep ``alike`` or share its budget by score, ``adaptive``.
        target: Entries per kv head that the search aimed at.
        tokens: The most that a budget could be in the search: as much as its longest context holds.
        found: The best budgets before completion to the target, in the form of `budgets`.
        before, after: Fitness on the search items before and after completion.
        completions: `budgets` completed to other targets.
        table: The budgets beside other divisions of the same total.
        search: The search's settings.
        evaluated: Vectors that were measured.
    """

    model_config = ConfigDict(extra="forbid")

    format: Literal["cachecraft-budgets-1"]
    budgets: Numbers = Field(min_length=1)
    model: str = ""
    policy: str = ""
    policy_id: str = ""
    granularity: Literal["layer", "head"] = "layer"
    heads: Literal["alike", "adaptive"] = "alike"
    target: int | None = None
    tokens: int | None = None
    found: Numbers | None = None
    before: float | None = None
    after: float | None = None
    completions: dict[str, Numbers] = {}
    table: list[Row] = []
    search: dict[str, Any] = {}
    evaluated: int | None = None

    @field_validator("budgets")
    @classmethod
    def _meaningful(cls, budgets: Numbers) -> Numbers:
        given = [number for row in budgets for number in (row if isinstance(row, list) else [row])]
        if any(number > MOST for number in given):  # before they become floats, which hold no whole number of any size
            raise ValueError(f"a number is above {MOST:g}; budgets count entries, in proportion")
        rows = rows_of(budgets)
        if len({len(row) for row in rows}) != 1 or not rows[0]:
            raise ValueError("layers have different numbers of kv heads")
        flat = [number for row in rows for number in row]
        bad = [number for number in flat if not math.isfinite(number) or number < 0]
        if bad:
            raise ValueError(f"{bad[0]:g} is no number of entries; budgets are finite and at least 0")
        if not any(flat):
            raise ValueError("all budgets are zero")
        return budgets

    @model_validator(mode="after")
    def _divided_once(self) -> BudgetsFile:
        if self.heads == "adaptive" and len(rows_of(self.budgets)[0]) > 1:
            raise ValueError("heads are adaptive, so that layers need one number each")
        return self


def rows_of(budgets: Numbers) -> tuple[tuple[float, ...], ...]:
    """Budgets with one number a layer, or one for each kv head, as rows."""
    return tuple(tuple(map(float, row)) if isinstance(row, list) else (float(row),) for row in budgets)


def read_budgets(path: str | Path) -> BudgetsFile:
    """Read a budgets file.

    Raises:
        BudgetError: It cannot be read, or is not of this form.
    """
    path = Path(path).expanduser()
    try:
        return BudgetsFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BudgetError(f"Budgets {path} cannot be read: {error.strerror}; check the path.") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        told = str(first["msg"]).removeprefix("Value error, ").rstrip(".")
        raise BudgetError(
            f"Budgets {path} cannot be used: {place}: {told}; docs/budgets.md says what such a file holds."
        ) from None


def shipped_budgets() -> tuple[str, ...]:
    """Names of the budgets that come with CacheCraft, in alphabetical order."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.json")))


def parse_allocation(text: str) -> Allocation:
    """Read ``"uniform"``, ``"pyramid"``, ``"reversed_pyramid"``, ``"adaptive"``, ``"global"`` or budgets.

    Args:
        text: A name, that of budgets that come with CacheCraft included, or a path that ends in ``.json``.

    Raises:
        UnknownNameError: No such allocation.
        BudgetError: The file cannot be used.
    """
    text = text.strip()
    if text in NAMES:
        return Allocation(text)
    shipped = shipped_budgets()
    if not text.endswith(".json") and text not in shipped:
        raise UnknownNameError("allocation", text, [*NAMES, *shipped], "A budgets file ends in .json.")
    path = SHIPPED / f"{text}.json" if text in shipped else Path(text).expanduser()
    whole = path.absolute()
    label = whole.parent.name if whole.name == FILE_NAME else whole.stem
    held = read_budgets(path)
    return Allocation("explicit", rows_of(held.budgets), label, held.heads == "adaptive", str(whole))
