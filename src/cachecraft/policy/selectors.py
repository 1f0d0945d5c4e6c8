"""Which entries stay, given scores and a budget: by tokens, by chunks that all heads share, or by pages.

Pure functions of scores (G, T), keep (G,) int64 and protected (G, T) bool. A selector is an order: it ranks the
entries, and those with ``ranks < keep`` stay, so that one ranking serves every budget and row sums are exactly
``keep``. Protected entries always stay, because they are ordered before all others and not because their scores are
high; ties go to the more recent entry. Scores must be finite (``invariants.check_scores``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from cachecraft.errors import PolicyError, UnknownNameError


def _ascending(scores: Tensor, protected: Tensor | None) -> Tensor:
    """Indices (G, T), the first to go first; a stable sort leaves the more recent of equals later."""
    if scores.dtype in (torch.float16, torch.bfloat16):
        scores = scores.float()
    if protected is not None:
        # All scores are finite, so infinity is strictly above every one of them: no sum, hence no rounding.
        scores = scores.masked_fill(protected, torch.inf)
    return scores.sort(dim=-1, stable=True).indices


def token_order(scores: Tensor, protected: Tensor | None) -> Tensor:
    """Indices (G, T) int64, best first: protected entries, then by score, then the more recent."""
    return _ascending(scores, protected).flip(-1)


def keep_first(order: Tensor, keep: Tensor) -> Tensor:
    """Mask (G, T) of the first ``keep`` (G,) entries of an order; one order serves every budget."""
    return _places(order) < keep.to(order.device)[:, None]


def _places(order: Tensor) -> Tensor:
    """The place (G, T) of each entry in an order."""
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def token_ranks(scores: Tensor, protected: Tensor | None) -> Tensor:
    """Place (G, T) of each entry in :func:`token_order`, from 0: entries with ``ranks < keep`` stay."""
    order = _ascending(scores, protected)
    places = torch.arange(order.shape[-1] - 1, -1, -1, device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def tokens(scores: Tensor, keep: Tensor, protected: Tensor | None = None) -> Tensor:
    """The best entries of each kv head."""
    return token_ranks(scores, protected) < keep.to(scores.device)[:, None]


def chunk_ranks(scores: Tensor, protected: Tensor | None, *, size: int = 20, per_head: bool = False) -> Tensor:
    """Place (G, T) of each entry where the best runs of neighbouring entries come first (ChunkKV, arXiv 2502.00299).

    A chunk's worth is the mean over its own entries; inside a chunk the better entries come first, so that a budget
    that ends inside one cuts it by token score (ours: the source keeps whole chunks, however many that makes).

    Args:
        scores: (G, T).
        protected: (G, T) bool.
        size: Entries per chunk; the last chunk may be shorter.
        per_head: Each kv head chooses for itself; otherwise scores are summed over the heads and all choose
            alike.
    """
    heads, length = scores.shape
    scores = scores.float()
    if not per_head:
        scores = scores.sum(dim=0, keepdim=True).expand(heads, length)
    count = -(-length // size)
    totals = pad(scores, (0, count * size - length)).view(heads, count, size).sum(dim=-1)
    sizes = torch.full((count,), size, device=scores.device)
    sizes[-1] = length - (count - 1) * size
    worth = token_ranks(totals / sizes, None)  # (G, count): place of each chunk, equal ones by recency
    chunk_place = worth.repeat_interleave(size, dim=-1)[:, :length]
    if protected is not None:
        chunk_place = chunk_place.masked_fill(protected, -1)
    # Two stable passes: by token score inside, by the chunk's place outside.
    by_token = token_order(scores, None)
    outer = chunk_place.gather(-1, by_token).sort(dim=-1, stable=True).indices
    return _places(by_token.gather(-1, outer))


def chunks(
    scores: Tensor,
    keep: Tensor,
    protected: Tensor | None = None,
    *,
    size: int = 20,
    per_head: bool = False,
) -> Tensor:
    """The best runs of neighbouring entries, the last of them cut to the exact budget; see :func:`chunk_ranks`."""
    return chunk_ranks(scores, protected, size=size, per_head=per_head) < keep.to(scores.device)[:, None]


def pages(scores: Tensor, keep: Tensor, protected: Tensor | None = None, *, size: int = 16) -> Tensor:
    """Whole pages by mean score, each kv head for itself; the last page is cut by token score."""
    return chunks(scores, keep, protected, size=size, per_head=True)


_DEFAULT_SIZES = {"tokens": None, "chunks": 20, "pages": 16}


@dataclass(frozen=True)
class Selector:
    """A selector with its size.

    Attributes:
        name: ``"tokens"``, ``"chunks"`` or ``"pages"``.
        size: Entries per chunk or page; None for tokens.
    """

    name: str
    size: int | None = None

    def __str__(self) -> str:
        return self.name if self.size is None else f"{self.name}:{self.size}"

    def __call__(self, scores: Tensor, keep: Tensor, protected: Tensor | None = None) -> Tensor:
        """Select: (G, T) scores, (G,) keep, (G, T) protected -> (G, T) bool mask."""
        return self.ranks(scores, protected) < keep.to(scores.device)[:, None]

    def ranks(self, scores: Tensor, protected: Tensor | None = None) -> Tensor:
        """Place (G, T) of each entry, from 0: entries with ``ranks < keep`` stay, whatever the budget."""
        if self.name == "tokens" or self.size is None:
            return token_ranks(scores, protected)
        return chunk_ranks(scores, protected, size=self.size, per_head=self.name == "pages")


def parse_selector(text: str) -> Selector:
    """Read ``"tokens"``, ``"chunks"``, ``"chunks:20"`` or ``"pages:16"``.

    Raises:
        UnknownNameError: No such selector.
        PolicyError: The size is not a whole number of at least 1.
    """
    name, colon, size = text.strip().partition(":")
    if name not in _DEFAULT_SIZES:
        raise UnknownNameError("selector", name, _DEFAULT_SIZES)
    default = _DEFAULT_SIZES[name]
    if not colon:
        return Selector(name, default)
    if default is None or not size.isdecimal() or int(size) < 1:
        raise PolicyError(
            f"Selector {text!r} cannot be read; write tokens, chunks:SIZE or pages:SIZE with a size of at least 1."
        )
    return Selector(name, int(size))
