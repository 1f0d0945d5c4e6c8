"""FRC: local attention, its density and its peak over heads, in chunks (a reconstruction; arXiv 2608.14555).

The paper names three signals summed with fixed weights and a choice by chunks; it publishes no constants. The
ranks, the constants and the chunk size here are ours, so that results of this file are not the paper's.
"""

from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.selectors import chunks
from cachecraft.policy.signals import neighbour_mean, rank_shares


def protect(f: Features, *, sinks: int = 4, recent: int = 8) -> tuple[int, int]:
    """Attention sinks and a short recent window."""
    return sinks, recent


def score_tokens(
    f: Features,
    *,
    span: int = 32,
    kernel: int = 9,
    local: float = 0.5,
    density: float = 0.3,
    peak: float = 0.2,
) -> Tensor:
    """Weighted ranks of local attention received: group mean, mean over neighbours, group maximum."""
    received = f.local_attention_received(span)  # (G, H/G, T)
    mean = received.mean(dim=1)
    around = neighbour_mean(mean, kernel, zeros_outside=True)
    return local * rank_shares(mean) + density * rank_shares(around) + peak * rank_shares(received.amax(dim=1))


def select_tokens_to_keep(scores: Tensor, keep: Tensor, f: Features, *, chunk: int = 8) -> Tensor:
    """The best chunks, each kv head for itself."""
    return chunks(scores, keep, f.protected, size=chunk, per_head=True)
