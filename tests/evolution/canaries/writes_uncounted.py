"""Writes where PyTorch does not count it."""


def score_tokens(f):
    f.values.numpy()[:] = 0
    return f.values[..., 0]
