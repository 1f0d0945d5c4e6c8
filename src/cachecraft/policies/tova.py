"""TOVA: attention of the last query, one choice for all heads (Oren et al., 2024, arXiv 2401.06104)."""

from torch import Tensor

from cachecraft.policy.features import Features


def protect(f: Features) -> tuple[int, int]:
    """The last entry."""
    return 0, 1


def score_tokens(f: Features) -> Tensor:
    """Attention of the last query, averaged over all query heads and given to every kv head."""
    return f.window_attention(1).mean(dim=(0, 1, 2)).expand(f.kv_heads, f.tokens)
