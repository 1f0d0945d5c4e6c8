"""Q-Filters: keys along the main direction of the queries (Godey et al., 2025, arXiv 2503.02812).

The source finds each head's direction once, on other texts; here it is that of the context's own queries (ours), so
that nothing has to be downloaded for a model.
"""

from torch import Tensor

from cachecraft.policy.features import Features
from cachecraft.policy.signals import main_direction


def score_tokens(f: Features) -> Tensor:
    """The key along the first singular direction of each query head, on the queries' side; group mean."""
    directions = main_direction(f.queries).view(f.kv_heads, -1, f.head_dim)
    return (f.keys @ directions.mean(dim=1).unsqueeze(-1)).squeeze(-1)
