"""Ends in a crash."""

import ctypes


def score_tokens(f):
    ctypes.string_at(8)
    return f.keys[..., 0]
