"""A policy with other parameters or another allocation, made of the same program."""

from __future__ import annotations

from collections.abc import Mapping

from cachecraft.policy.allocation import Allocation
from cachecraft.policy.contract import Policy, policy_from_source
from cachecraft.policy.source import ParameterValue


def variant(
    policy: Policy,
    *,
    parameters: Mapping[str, ParameterValue] | None = None,
    allocation: Allocation | None = None,
) -> Policy:
    """The policy with what is given changed; its program, base and selector stay.

    Args:
        policy: The policy.
        parameters: Values of some parameters; the others stay.
        allocation: How its budget is divided; None leaves it.
    """
    return policy_from_source(
        policy.source,
        name=policy.name.partition("(")[0].partition(":")[0],
        origin=policy.origin,
        base=policy.base,
        parameters={**policy.parameters, **(parameters or {})},
        selector=None if policy.selector is None else str(policy.selector),
        allocation=allocation or policy.allocation,
    )
