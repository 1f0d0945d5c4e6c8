"""The constants of a scorer that are searched along with budgets: which they are, and the policy with other values."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cachecraft.errors import BudgetError
from cachecraft.policy.contract import Policy
from cachecraft.policy.source import ParameterValue
from cachecraft.policy.variants import variant


def searchable(policy: Policy) -> tuple[str, ...]:
    """Names of the policy's own parameters that are numbers other than 0, in order.

    Raises:
        BudgetError: There are none.
    """
    names = tuple(
        name
        for name, value in policy.parameters.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and value != 0 and math.isfinite(value)
    )
    if not names:
        raise BudgetError(f"Policy {policy.name} has no constants that could be searched; leave out --with-params.")
    return names


def with_factors(policy: Policy, names: Sequence[str], factors: Sequence[float]) -> Policy:
    """The policy with constants multiplied by powers of 2; whole numbers stay whole and away from 0.

    Args:
        policy: The policy as it was given.
        names: What `searchable` returned.
        factors: The power of each.
    """
    if not any(factors):
        return policy
    values: dict[str, ParameterValue] = {}
    for name, factor in zip(names, factors, strict=True):
        before = policy.parameters[name]
        after = float(before) * 2.0**factor
        values[name] = (round(after) or int(math.copysign(1, after))) if isinstance(before, int) else after
    return variant(policy, parameters=values)
