"""Protected: another policy's scores under protection of one's choice (ours); wraps a scorer.

``protected(keydiff):first=4,last=64``. Policies come with different protection, from none to a window of 64 entries;
given the same, their scores alone are compared. The best single entries are kept, whatever the base's own selector.
"""

from torch import Tensor

from cachecraft.policy.contract import Policy
from cachecraft.policy.features import Features


def protect(f: Features, *, first: int = 4, last: int = 16) -> tuple[int, int]:
    """The given numbers of first and last entries, instead of what the base protects."""
    return first, last


def score_tokens(f: Features, base: Policy) -> Tensor:
    """The base's score as it is."""
    return base.score(f)
