"""Looks for the answer in a file."""


def score_tokens(f):
    with open("/etc/hostname") as file:
        return f.keys[..., 0] + len(file.read())
