"""Comes to an end after years, in words that the gate allows."""


def score_tokens(f):
    total = 0.0
    for step in range(10**15):
        total = total + step
    return f.keys[..., 0] * total
