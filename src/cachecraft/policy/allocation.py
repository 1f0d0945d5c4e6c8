"""How many entries each layer and kv head keeps: uniform, a pyramid, adaptive heads, one threshold, or given shares.

Pure functions of a shape, a budget and, where a division follows the scores, the scores; each total is exact, to the
entry. Nothing here runs a policy: see division.py. Files of shares are read in budgets_file.py.
Symbols: L layers, G kv heads, T entries; `keep` is the number of entries kept per kv head on average.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cachecraft.errors import BudgetError
from cachecraft.policy.selectors import token_ranks

SAFEGUARD = 0.2  # share of the budget that Ada-KV leaves to each head whatever the others score
STEEPNESS = 20  # of PyramidKV: the last layer keeps a twentieth of the average


@dataclass(frozen=True)
class Shape:
    """What a budget is divided over: `layers` (L) that are compressed, of `heads` (G) with `tokens` (T) entries."""

    layers: int
    heads: int
    tokens: int


@dataclass(frozen=True, eq=False)
class Division:
    """A budget, divided.

    Attributes:
        counts: (L, G) int64, from 1 to T, summing to L * G * keep.
        note: What had to give way, in one sentence; "" if nothing had.
    """

    counts: Tensor
    note: str = ""


def apportion(shares: Sequence[float], total: int, low: int, high: int) -> list[int]:
    """Divide a total in proportion to shares, exactly, every part from `low` to `high`.

    Parts that would leave the range are held at its end and the others share what is over; what proportion leaves of
    whole entries goes to the largest remainders, of equal ones to the first.

    Args:
        shares: Finite numbers of at least 0.
        total: What the parts sum to.
        low: The least of a part.
        high: The most of a part.

    Raises:
        BudgetError: A share is negative or not finite, all are zero, or no parts in the range sum to the total.
    """
    if not shares or not all(math.isfinite(share) and share >= 0 for share in shares) or not any(shares):
        bad = next((share for share in shares if not (math.isfinite(share) and share >= 0)), None)
        wrong = "all are zero" if bad is None else f"one is {bad:g}"
        raise BudgetError(f"Budgets must be finite numbers of at least 0 that are not all zero, but {wrong}.")
    reach = sum(high if share else low for share in shares)
    if not low * len(shares) <= total <= reach:
        raise BudgetError(
            f"{total} entries cannot be divided over {len(shares)} parts of {low} to {high} each"
            f"{' when some have a share of zero' if total > reach and 0 in shares else ''}; choose another budget."
        )
    exact = _filled(shares, total, low, high)
    parts = [math.floor(part) for part in exact]
    order = sorted(range(len(parts)), key=lambda place: (parts[place] - exact[place], place))
    left, place = total - sum(parts), 0
    while left:
        # Twice around at most: sums of floating-point numbers may miss the total by a hair.
        grown = parts[order[place % len(order)]] + (1 if left > 0 else -1)
        if low <= grown <= high:
            parts[order[place % len(order)]] = grown
            left -= 1 if left > 0 else -1
        place += 1
    return parts


def _filled(shares: Sequence[float], total: int, low: int, high: int) -> list[float]:
    """Parts in proportion to shares with those beyond an end held at it, summing to the total but for rounding."""
    held: dict[int, float] = {}
    while True:
        free = [place for place in range(len(shares)) if place not in held]
        weight = math.fsum(shares[place] for place in free)
        if not free or not weight:
            return [float(held.get(place, low)) for place in range(len(shares))]
        scale = (total - math.fsum(held.values())) / weight
        short = {place: low - scale * shares[place] for place in free if scale * shares[place] < low}
        over = {place: scale * shares[place] - high for place in free if scale * shares[place] > high}
        if not short and not over:
            return [held[place] if place in held else scale * shares[place] for place in range(len(shares))]
        # Holding the side that misses by more moves the scale towards the other side, so that no hold is undone.
        if math.fsum(short.values()) >= math.fsum(over.values()):
            held |= dict.fromkeys(short, float(low))
        else:
            held |= dict.fromkeys(over, float(high))


def uniform(shape: Shape, keep: int) -> Division:
    """The same number everywhere."""
    return Division(torch.full((shape.layers, shape.heads), keep, dtype=torch.int64))


def _by_layer(shape: Shape, shares: Sequence[float], keep: int, note: str = "") -> Division:
    """Shares of layers, whose heads all keep the same."""
    parts = torch.tensor(apportion(shares, shape.layers * keep, 1, shape.tokens), dtype=torch.int64)
    return Division(parts.unsqueeze(1).repeat(1, shape.heads), note)


def pyramid(shape: Shape, keep: int, window: int, *, reverse: bool = False, steepness: int = STEEPNESS) -> Division:
    """Budgets that fall linearly from the first layer to the last (PyramidKV, arXiv 2406.02069).

    The last layer keeps ``keep / steepness`` and the first ``2 * keep`` less that, protected entries included. Where
    the first would keep more than T less the protected entries, it keeps those and the last one what balances it;
    where that turns the slope round, the division is uniform, and its note says so.

    Args:
        shape: What the budget is divided over.
        keep: The average.
        window: Entries that the policy protects.
        reverse: Let budgets rise instead.
        steepness: From 1, which is uniform.
    """
    least = keep / steepness
    most = 2 * keep - least
    if most > shape.tokens - window:
        most = float(shape.tokens - window)
        least = 2 * keep - most
    if least > most:
        whole = uniform(shape, keep)
        return Division(
            whole.counts,
            f"A pyramid over {shape.tokens} entries, {window} of them protected, has no room at {keep} a head; "
            "all layers kept alike.",
        )
    steps = max(1, shape.layers - 1)
    shares = [most - (most - least) * layer / steps for layer in range(shape.layers)]
    return _by_layer(shape, shares[::-1] if reverse else shares, keep)


def explicit(shape: Shape, shares: Sequence[Sequence[float]], keep: int) -> Division:
    """Given shares of layers, (L, 1), or of layers and heads, (L, G), completed to the budget in proportion.

    Raises:
        BudgetError: The shares are for another model, or cannot be met.
    """
    require_shares(shares, shape.layers, shape.heads)
    flat = [share for layer in shares for share in layer]
    total = keep * len(flat)
    # Rounding is no news: only what misses its exact share by a whole entry or more is.
    over = sum(share * total / math.fsum(flat) >= shape.tokens + 1 for share in flat) if any(flat) else 0
    what = "layers" if len(shares[0]) == 1 else "heads"
    note = f"{over} {what} would keep more than all {shape.tokens} entries; the others share the rest." if over else ""
    if len(shares[0]) == 1:
        return _by_layer(shape, flat, keep, note)
    parts = apportion(flat, total, 1, shape.tokens)
    return Division(torch.tensor(parts, dtype=torch.int64).view(shape.layers, shape.heads), note)


def require_shares(shares: Sequence[Sequence[float]], layers: int, heads: int) -> None:
    """Refuse shares, (L, 1) or (L, G), that are for another model.

    Raises:
        BudgetError: Another number of layers or heads.
    """
    if len(shares) != layers:
        raise BudgetError(
            f"The budgets are for {len(shares)} layers, but this model has {layers} that are compressed; use budgets "
            "that were made for it."
        )
    if len(shares[0]) not in (1, heads):
        raise BudgetError(
            f"The budgets are for {len(shares[0])} kv heads a layer, but this model has {heads}; use budgets that were "
            "made for it."
        )


def adaptive(scores: Tensor, protected: Tensor | None, keep: int, *, safeguard: float = SAFEGUARD) -> Tensor:
    """Heads of a layer share its budget by score (Ada-KV, arXiv 2407.11550).

    Each head keeps its protected entries and its best ``max(1, int(safeguard * keep))``; the rest of the layer's budget
    goes to the highest scores over all heads, of equal ones to the more recent.

    Args:
        scores: (G, T), finite.
        protected: (G, T) bool, at most `keep` a head.
        keep: The average.
        safeguard: Share of `keep` that each head has for sure.

    Returns:
        (G,) int64, summing to G * keep.
    """
    return _by_threshold(scores, protected, keep, max(1, int(safeguard * keep)))


def over_model(scores: Sequence[Tensor], protected: Sequence[Tensor | None], keep: int) -> Tensor:
    """One threshold over the scores of all layers and heads; each head keeps its protected entries and at least one.

    Scores of different layers are compared as they are.

    Args:
        scores: For each layer (G, T), finite.
        protected: For each layer (G, T) bool, at most `keep` a head.
        keep: The average.

    Returns:
        (L, G) int64, summing to L * G * keep.
    """
    masks = [torch.zeros_like(s, dtype=torch.bool) if p is None else p for s, p in zip(scores, protected, strict=True)]
    first = scores[0].device
    counts = _by_threshold(torch.cat([s.to(first) for s in scores]), torch.cat([m.to(first) for m in masks]), keep, 1)
    return counts.view(len(scores), -1)


def _by_threshold(scores: Tensor, protected: Tensor | None, keep: int, sure: int) -> Tensor:
    """Entries of each row of (N, T) among the best N * keep; `sure` of each row and the protected are for sure."""
    rows = scores.shape[0]
    wide = scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores
    held = token_ranks(wide, protected) < sure
    if protected is not None:
        held |= protected
    # Entries of one position stand together, so that a stable sort leaves the more recent of equals last.
    flat = wide.masked_fill(held, torch.inf).t().flatten()
    best = flat.sort(stable=True).indices[flat.numel() - rows * keep :]
    return torch.bincount(best % rows, minlength=rows).cpu()


NAMES = ("uniform", "pyramid", "reversed_pyramid", "adaptive", "global")


@dataclass(frozen=True)
class Allocation:
    """A way to divide a budget, chosen from outside: it replaces a policy's own ``allocate``.

    Attributes:
        name: One of `NAMES`, or ``"explicit"``.
        shares: Of ``"explicit"``, for each layer one share, or one for each kv head.
        label: What tables call it.
        adaptive_heads: Of ``"explicit"`` with shares of layers: heads share the layer's as under ``"adaptive"``.
        origin: Its file, for messages; "" if it was not read from one.
    """

    name: str
    shares: tuple[tuple[float, ...], ...] = ()
    label: str = ""
    adaptive_heads: bool = False
    origin: str = ""

    def __str__(self) -> str:
        return self.label or self.name

    @property
    def identity(self) -> str:
        """Everything of it that can change a result, as JSON; `restored` reads it."""
        return json.dumps([self.name, self.shares, *([True] if self.adaptive_heads else [])])

    @classmethod
    def restored(cls, identity: str) -> Allocation:
        """From an `identity`."""
        name, shares, *adaptive_heads = json.loads(identity)
        return cls(name, tuple(tuple(map(float, layer)) for layer in shares), adaptive_heads=bool(adaptive_heads))

    @property
    def waits(self) -> bool:
        """Whether the scores of all layers must be known before anything is chosen."""
        return self.name == "global"

    def require_model(self, layers: int, heads: int) -> None:
        """Refuse a model that given shares do not fit; BudgetError."""
        if self.name == "explicit":
            require_shares(self.shares, layers, heads)

    def planned(self, shape: Shape, keep: int, window: int) -> Division:
        """The division as far as it does not depend on scores; `window` as for `pyramid`."""
        if self.name == "uniform":
            return uniform(shape, keep)
        if self.name == "explicit":
            return explicit(shape, self.shares, keep)
        return pyramid(shape, keep, window, reverse=self.name == "reversed_pyramid")
