"""Writes into a feature at once, which the gate can see."""


def score_tokens(f):
    f.values.zero_()
    return f.values[..., 0]
