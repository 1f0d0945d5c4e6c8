"""The errors CacheCraft raises: each message is one sentence that says what is wrong, with what value, and what to do.

The command line prints the sentence and exits with code 2; in Python they are ordinary exceptions.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class CacheCraftError(Exception):
    """Base of every error that CacheCraft raises on purpose."""


class UnknownNameError(CacheCraftError):
    """A policy, task, parameter or option that does not exist; the message offers the nearest names."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str = "") -> None:
        """Build the sentence.

        Args:
            kind: What the name was meant to be, for example ``"policy"``.
            name: The name that was not found.
            known: Every name that would have been accepted.
            hint: Where to look further, for example ``"`cachecraft policies` lists them"``.
        """
        choices = sorted(known)
        near = difflib.get_close_matches(name, choices, n=3, cutoff=0.5)
        if near:
            advice = f"did you mean {' or '.join(near)}?"
        elif choices:
            advice = f"known: {', '.join(choices[:12])}{', …' if len(choices) > 12 else ''}."
        else:
            advice = "there are none."
        super().__init__(f"There is no {kind} named {name!r}; {advice}{' ' + hint if hint else ''}")
        self.kind, self.name, self.near = kind, name, near


class BudgetError(CacheCraftError):
    """A ratio or a number of entries to keep that means nothing."""


class PolicyError(CacheCraftError):
    """Something about a policy is wrong."""


class PolicyLoadError(PolicyError):
    """A policy's file or specification cannot be read."""


class FeatureError(PolicyError):
    """A policy asked for a feature that this model or trace does not offer."""


class ModelError(CacheCraftError):
    """A model cannot be found, loaded or handled."""


class TaskError(CacheCraftError):
    """A task cannot be built as asked."""


class RunError(CacheCraftError):
    """A run folder cannot be used as asked."""
