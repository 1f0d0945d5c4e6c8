"""A candidate as the trusted side holds it: text and settings that are never run here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cachecraft.policy.allocation import Allocation
from cachecraft.policy.contract import Policy, policy_from_source
from cachecraft.policy.source import ParameterValue, read_source


@dataclass(frozen=True)
class Program:
    """A policy's text with what is set from outside.

    Attributes:
        name: Short name, for messages.
        source: The program text.
        parameters: Values of parameters that differ from their defaults.
        selector: A selector that replaces the program's own choice, as ``--selector`` names it.
        base: The program that this one wraps, if it wraps one.
        allocation: The identity of an allocation that replaces the program's own.
    """

    name: str
    source: str
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    selector: str | None = None
    base: Program | None = None
    allocation: str | None = None

    @classmethod
    def of(cls, policy: Policy) -> Program:
        """The program of a policy that was loaded."""
        return cls(
            name=policy.name.partition("(")[0].partition(":")[0],
            source=policy.source,
            parameters=dict(policy.parameters),
            selector=None if policy.selector is None else str(policy.selector),
            base=None if policy.base is None else cls.of(policy.base),
            allocation=None if policy.allocation is None else policy.allocation.identity,
        )

    @property
    def allocates(self) -> bool:
        """Whether heads may keep different numbers of entries; PolicyLoadError if the text is no policy."""
        if self.allocation is not None:
            return Allocation.restored(self.allocation).name != "uniform"
        return "allocate" in read_source(self.source, self.name).declared

    def load(self) -> Policy:
        """Run the text and bind its functions. Only a candidate's own process may call this.

        Raises:
            PolicyLoadError: The text is no policy.
            UnknownNameError: No such selector.
        """
        return policy_from_source(
            self.source,
            name=self.name,
            origin=f"{self.name}.py",
            base=None if self.base is None else self.base.load(),
            parameters=self.parameters,
            selector=self.selector,
            allocation=None if self.allocation is None else Allocation.restored(self.allocation),
        )

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        base = None if self.base is None else self.base.to_json()
        return {
            "name": self.name,
            "source": self.source,
            "parameters": dict(self.parameters),
            "selector": self.selector,
            "base": base,
            "allocation": self.allocation,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Program:
        """From the plain values of :meth:`to_json`."""
        base = values["base"]
        return cls(**{**values, "base": None if base is None else cls.from_json(base)})
