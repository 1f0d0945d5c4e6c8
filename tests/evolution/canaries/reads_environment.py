"""Looks for a key in the environment."""

import os


def score_tokens(f):
    return f.keys[..., 0] * len(os.environ["CACHECRAFT_CANARY_KEY"])
