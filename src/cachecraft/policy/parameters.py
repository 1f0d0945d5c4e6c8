"""Parameters of policies as text: ``key=value,key=value``, read by the type of each default, and written back."""

from __future__ import annotations

from cachecraft.errors import PolicyLoadError, UnknownNameError
from cachecraft.policy.source import ParameterValue, PolicySource

_BOOLEANS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def written(value: ParameterValue) -> str:
    """A value as a specification writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse_parameters(name: str, read: PolicySource, text: str | None) -> dict[str, ParameterValue]:
    """Values that differ from their defaults.

    Args:
        name: The policy's, for messages.
        read: What its text declares.
        text: ``key=value,key=value``, or None.

    Raises:
        PolicyLoadError: A part cannot be read, a value has another type, or a key is given twice.
        UnknownNameError: No such parameter.
    """
    values: dict[str, ParameterValue] = {}
    for part in (text or "").split(",") if text else []:
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            raise PolicyLoadError(f"Parameter {part.strip()!r} of policy {name} cannot be read; write key=value.")
        if key not in read.parameters:
            raise UnknownNameError(f"parameter of policy {name}", key, read.parameters)
        if key in values:
            raise PolicyLoadError(f"Parameter {key} of policy {name} is given twice; give it once.")
        kind = type(read.parameters[key])
        try:
            values[key] = _BOOLEANS[value.lower()] if kind is bool else kind(value)
        except (ValueError, KeyError):
            wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
            raise PolicyLoadError(
                f"Parameter {key} of policy {name} is {value!r}; give {wanted}, for example {read.parameters[key]}."
            ) from None
    return values
