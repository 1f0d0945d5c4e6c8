"""FRC: local attention, its density and its peak over heads, in chunks (a reconstruction; arXiv 2608.14555).

The paper names three signals summed with fixed weights and a choice by chunks; it publishes no constants. The
ranks, the constants and the chunk size here are ours, so that results of this file are not the paper's.
"""

import torch
from torch import Tensor
from torch.nn.functional import avg_pool1d, pad

from cachecraft.policy.features import Features
from cachecraft.policy.selectors import chunks


def protect(f: Features, *, sinks: int = 4, recent: int = 8) -> tuple[int, int]:
    """Attention sinks and a short recent window."""
    return sinks, recent


def _ranked(signal: Tensor) -> Tensor:
    """(G, T) -> each entry's place among its head's, over T; the more recent of equals ranks higher."""
    order = signal.sort(dim=-1, stable=True).indices
    places = torch.arange(signal.shape[-1], dtype=torch.float32, device=signal.device).expand_as(signal)
    return torch.empty_like(signal).scatter_(-1, order, places) / signal.shape[-1]


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
    around = avg_pool1d(pad(mean, ((kernel - 1) // 2, kernel // 2)), kernel, stride=1)
    return local * _ranked(mean) + density * _ranked(around) + peak * _ranked(received.amax(dim=1))


def select_tokens_to_keep(scores: Tensor, keep: Tensor, f: Features, *, chunk: int = 8) -> Tensor:
    """The best chunks, each kv head for itself."""
    return chunks(scores, keep, f.protected, size=chunk, per_head=True)
