"""Runs a policy's program in a namespace of its own and binds its functions to their parameters, at once or when asked.

The program is run as it is: what it may do is for others to decide (`cachecraft.sandbox`).
"""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from cachecraft.errors import PolicyLoadError
from cachecraft.policy.source import ParameterValue, PolicySource


class Unrun(Mapping[str, Callable[..., Any]]):
    """The functions of a program that is not run before one of them is wanted."""

    def __init__(
        self,
        read: PolicySource,
        source: str,
        origin: str,
        parameters: Mapping[str, ParameterValue],
        base: object | None,
    ) -> None:
        self._names = tuple(read.declared)
        self._given = read, source, origin, parameters, base
        self._bound: Mapping[str, Callable[..., Any]] | None = None

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if self._bound is None:
            self._bound = bind(*self._given)
        return self._bound[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def bind(
    read: PolicySource,
    source: str,
    origin: str,
    parameters: Mapping[str, ParameterValue],
    base: object | None,
) -> Mapping[str, Callable[..., Any]]:
    """Run the program in a namespace of its own and bind each function to the parameters it declares."""
    module = types.ModuleType(f"policy_{Path(origin).stem}")
    module.__file__ = origin
    try:
        exec(compile(source, origin, "exec"), module.__dict__)  # noqa: S102 - a policy is a program
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == origin]
        line = f", line {lines[-1]}" if lines else ""
        raise PolicyLoadError(
            f"Policy file {origin}{line} cannot be loaded: {type(error).__name__}: {error}; a file must only "
            "import and define functions."
        ) from error
    functions: dict[str, Callable[..., Any]] = {}
    for name, declared in read.declared.items():
        given: dict[str, object] = {key: parameters[key] for key in declared if key != "base"}
        if "base" in declared:
            given["base"] = base
        functions[name] = partial(module.__dict__[name], **given)
    return types.MappingProxyType(functions)
