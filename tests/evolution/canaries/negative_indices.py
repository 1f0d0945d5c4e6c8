"""Returns places that count from the end instead of a mask."""

import torch


def score_tokens(f):
    return f.keys[..., 0]


def select_tokens_to_keep(scores, keep, f):
    return -torch.arange(1, int(keep[0]) + 1).expand(f.kv_heads, -1)
