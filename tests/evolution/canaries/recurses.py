"""Calls itself without end."""


def deeper(scores):
    return deeper(scores + 1)


def score_tokens(f):
    return deeper(f.keys[..., 0])
