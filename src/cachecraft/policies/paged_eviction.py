"""PagedEviction: large values under small keys matter most, in pages (Chitty-Venkata et al., 2025, arXiv 2509.04377).

The published method evicts a prompt by tokens, which is what this file does, and later by pages: while decoding,
each time the newest page of 16 entries fills up, the page of the lowest mean score goes as a whole, so that memory is
freed without moving entries. A compressed context here keeps the pages that its prefill left. Whole pages at prefill
are a variant of ours: ``--selector pages:16``.
"""

from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import value_key_ratio


def score_tokens(f: Features) -> Tensor:
    """Norm of the value over norm of the key."""
    return value_key_ratio(f.keys, f.values)
