"""Keeps the places where the needle was in one sample; only other samples show that."""

import torch


def score_tokens(f):
    places = torch.arange(f.tokens, device=f.positions.device)
    return -(places - 137).abs().float().expand(f.kv_heads, f.tokens)
