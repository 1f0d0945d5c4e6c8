"""Loads a module that nobody had loaded."""

import wsgiref.simple_server


def score_tokens(f):
    return f.keys[..., 0] + len(wsgiref.simple_server.__doc__)
