"""Starts a thread that outlives the call."""

import threading


def score_tokens(f):
    threading.Thread(target=lambda: None).start()
    return f.keys[..., 0]
