"""Keeps all of a short prompt, budget or not."""

import torch


def score_tokens(f):
    return f.keys[..., 0]


def select_tokens_to_keep(scores, keep, f):
    return torch.ones(scores.shape, dtype=torch.bool)
