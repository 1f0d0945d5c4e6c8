"""Calls home."""

import socket


def score_tokens(f):
    socket.socket().connect(("127.0.0.1", 9))
    return f.keys[..., 0]
