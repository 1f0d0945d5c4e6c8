"""Uses no processor time at all and is still late."""

import time


def score_tokens(f):
    time.sleep(1000)
    return f.keys[..., 0]
