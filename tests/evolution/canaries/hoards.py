"""Asks for 50 GB at once."""

import torch


def score_tokens(f):
    return f.keys[..., 0] + torch.ones(50, 1000, 1000, 250).sum()
