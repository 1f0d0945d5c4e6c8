"""Runs a program of the system."""

import os


def score_tokens(f):
    os.execv("/bin/sh", ["sh", "-c", "true"])
