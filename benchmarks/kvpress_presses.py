"""The peer's presses, made from our policies' names, and a recorder of what they score and keep.

Imported by kvpress_peer.py in the peer's environment; it imports nothing of CacheCraft.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from kvpress import (
    ChunkKVPress,
    CompactorPress,
    CriticalKVPress,
    CURPress,
    ExpectedAttentionPress,
    KeyDiffPress,
    KnormPress,
    LagKVPress,
    LeverageScorePress,
    NonCausalAttnPress,
    ObservedAttentionPress,
    RandomPress,
    ScorerPress,
    SnapKVPress,
    StreamingLLMPress,
    TOVAPress,
)


class VnormPress(ScorerPress):
    """The norm of the value. Not part of kvpress: added here so that both sides run the same cells."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        """Scores, (B, G, T)."""
        return values.norm(dim=-1)


class VKRatioPress(ScorerPress):
    """Norm of the value over norm of the key. Not part of kvpress, as above."""

    def score(self, module, hidden_states, keys, values, attentions, kwargs):
        """Scores, (B, G, T)."""
        return values.norm(dim=-1) / keys.norm(dim=-1)


PRESSES: dict[str, Callable[..., Any]] = {
    "random": RandomPress,
    "streaming_llm": StreamingLLMPress,
    "knorm": KnormPress,
    "keydiff": KeyDiffPress,
    "vnorm": VnormPress,
    "vk_ratio": VKRatioPress,
    "snapkv": SnapKVPress,
    "tova": TOVAPress,
    "observed_attention": ObservedAttentionPress,
    "expected_attention": ExpectedAttentionPress,
    "expected_attention:value_norm=false": lambda **given: ExpectedAttentionPress(use_vnorm=False, **given),
    "lagkv": LagKVPress,
    "leverage": LeverageScorePress,
    "noncausal": NonCausalAttnPress,
    "compactor": CompactorPress,
    "cur": CURPress,
}
WRAPPERS: dict[str, Callable[[Any], Any]] = {"criticalkv": CriticalKVPress, "chunks": ChunkKVPress}
NEEDS_EAGER = {"observed_attention"}  # its score is taken from attention weights that only eager attention returns


def make_press(spec: str, ratio: float, blend: float | None) -> Any:
    """The press of a policy, `NAME` or `WRAPPER(NAME)`.

    Args:
        spec: The policy.
        ratio: Its compression ratio.
        blend: Weight of the leverage in `compactor`, which else is the ratio.
    """
    wrapped = re.fullmatch(r"(\w+)\((.*)\)", spec)
    if wrapped:
        return WRAPPERS[wrapped[1]](make_press(wrapped[2], ratio, blend))
    more = {} if blend is None else {"blending": blend}
    return PRESSES[spec](compression_ratio=ratio, **more)


@contextmanager
def drawing(noise: np.ndarray | None) -> Iterator[None]:
    """Inside, `torch.randn` hands out the given draws, one for each layer, instead of its own."""
    if noise is None:
        yield
        return
    draws = iter(noise)

    def given(*shape: int, **_: object) -> torch.Tensor:
        draw = torch.from_numpy(next(draws))
        assert draw.numel() == np.prod(shape), f"{tuple(draw.shape)} was given where {shape} is drawn"
        return draw.view(shape)

    with mock.patch.object(torch, "randn", given):
        yield


class Recorder:
    """Notes of each layer which entries a press keeps and how it scored them."""

    def __init__(self, press: Any) -> None:
        """Listen to a press."""
        self.masks: list[np.ndarray] = []
        self.scores: list[np.ndarray] = []
        self._scorer = press.press if isinstance(press, ChunkKVPress) else press
        self._score, self._compress = self._scorer.score, press.compress
        press.compress = self._noting

    def _noting(self, module, hidden_states, keys, values, attentions, kwargs):
        found: list[torch.Tensor] = []

        def scored(*given: Any) -> torch.Tensor:
            found.append(self._score(*given))
            return found[-1]

        self._scorer.score = scored
        result = self._compress(module, hidden_states, keys, values, attentions, kwargs)
        # A second time with the same scores, and the positions in place of the values: what comes back was kept.
        self._scorer.score = lambda *_: found[0]
        ramp = torch.arange(keys.shape[2], dtype=torch.float32).view(1, 1, -1, 1).expand(keys.shape)
        _, kept = self._compress(module, hidden_states, keys, ramp, attentions, kwargs)
        mask = torch.zeros(keys.shape[1:3], dtype=torch.bool)
        self.masks.append(mask.scatter_(-1, kept[0, :, :, 0].long(), True).numpy())
        self.scores.append(found[0][0].float().numpy())
        return result

    def arrays(self) -> dict[str, np.ndarray]:
        """What was noted: masks and scores, (L, G, T)."""
        return {"masks": np.stack(self.masks), "scores": np.stack(self.scores)}
