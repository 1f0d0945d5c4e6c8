"""Entries of published files: what they must hold, and one sentence for what is wrong: which file, place and field."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from cachecraft.errors import TaskError

Text = Annotated[str, StringConstraints(min_length=1)]
_SAID = {
    "missing": "is missing",
    "model_type": "should be an object with fields",
    "too_short": "is an empty list",
    "string_too_short": "is empty",
    "extra_forbidden": "is not a field of this form",
}
_Model = TypeVar("_Model", bound=BaseModel)


class Entry(BaseModel):
    """Part of a published file; fields that no task needs are passed over, unlike in files of our own."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def place(number: int, lines: bool) -> str:
    """Where an entry stands, as messages say it."""
    return f"line {number + 1}, " if lines else f"[{number}]"


def checked(model: type[_Model], content: Any, name: str, where: str = "") -> _Model:
    """An entry of a form.

    Args:
        model: The form.
        content: The entry.
        name: Of the file.
        where: Its place, as `DataFile.entries` gives it.

    Raises:
        TaskError: A field is missing or has another type; the sentence says which.
    """
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        what = _SAID.get(first["type"], first["msg"].removeprefix("Input "))
        raise wrong(name, where, steps, what) from error


def wrong(name: str, where: str, field: str, what: str) -> TaskError:
    """The error of an entry that is not as its form has it."""
    field = field if where.startswith("[") else field.removeprefix(".")
    seen = f"{where}{field}".removesuffix(", ") or "the whole"
    return TaskError(f"The data in {name} has another form than expected: {seen} {what}; mend or leave it out.")
