"""Prints a gigabyte."""


def score_tokens(f):
    for _ in range(1 << 10):
        print("x" * (1 << 20))
    return f.keys[..., 0]
