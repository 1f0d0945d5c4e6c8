"""Each policy's formula, written a second time: naively, in float64, entry by entry, from the papers alone.

Nothing here is fast or bounded in memory, and nothing of the package is used but the arrays of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cachecraft.policy.features import LayerFeatures

Row = list[float]


def exact(layer: LayerFeatures, name: str) -> Tensor:
    """An array of the layer in float64."""
    return layer.given(name).double()


def whole_attention(layer: LayerFeatures) -> Tensor:
    """(G, H/G, T, T): the whole causal softmax."""
    keys, queries = exact(layer, "keys"), exact(layer, "queries")
    group = layer.heads // layer.kv_heads
    logits = queries @ keys.repeat_interleave(group, dim=0).transpose(1, 2) / math.sqrt(layer.head_dim)
    logits = logits.masked_fill(torch.ones(layer.tokens, layer.tokens).triu(1).bool(), -torch.inf)
    return logits.softmax(-1).view(layer.kv_heads, group, layer.tokens, layer.tokens)


def cosine_to_mean(vectors: Tensor) -> Tensor:
    out = torch.zeros(vectors.shape[:2], dtype=torch.float64)
    for head, rows in enumerate(vectors.double()):
        mean = sum(row / row.norm() for row in rows) / len(rows)
        for j, row in enumerate(rows):
            out[head, j] = (row @ mean) / (row.norm() * mean.norm())
    return out


def pooled(row: Row, kernel: int) -> Row:
    """Average over an odd number of neighbours, zeros outside."""
    reach = kernel // 2
    return [sum(row[max(0, j - reach) : j + reach + 1]) / kernel for j in range(len(row))]


def ranks(row: Row) -> Row:
    order = sorted(range(len(row)), key=lambda j: (row[j], j))
    return [order.index(j) / len(row) for j in range(len(row))]


def softmax(row: Row) -> Row:
    highest = max(row)
    powers = [math.exp(x - highest) for x in row]
    return [power / sum(powers) for power in powers]


def standardised(rows: list[Row]) -> Tensor:
    """Less the mean over all rows, over their unbiased standard deviation."""
    flat = [x for row in rows for x in row]
    if len(flat) < 2:
        return torch.zeros(len(rows), len(rows[0]))
    mean = sum(flat) / len(flat)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in flat) / (len(flat) - 1))
    return torch.tensor([[(x - mean) / max(deviation, 1e-6) for x in row] for row in rows])


def turned_back(layer: LayerFeatures, vector: Tensor, position: int) -> Tensor:
    """A vector as it was before it was turned to its position, pair by pair."""
    half = layer.head_dim // 2
    out = vector.clone()
    for pair in range(half):
        angle = -position * 10000.0 ** (-2 * pair / layer.head_dim)
        x, y = float(vector[pair]), float(vector[pair + half])
        out[pair] = x * math.cos(angle) - y * math.sin(angle)
        out[pair + half] = x * math.sin(angle) + y * math.cos(angle)
    return out


def snapkv(layer: LayerFeatures) -> Tensor:
    window, a = 64, whole_attention(layer)
    if layer.tokens <= window:
        return torch.zeros(layer.kv_heads, layer.tokens)
    before = layer.tokens - window
    rows = []
    for head in range(layer.kv_heads):
        row = [float(a[head, :, before:, j].mean()) for j in range(before)]
        smooth = pooled(row, 5)
        rows.append(smooth + [max(smooth)] * window)
    return torch.tensor(rows)


def frc(layer: LayerFeatures) -> Tensor:
    a, tokens = whole_attention(layer), layer.tokens
    rows = []
    for head in range(layer.kv_heads):
        local = [[float(a[head, h, j : j + 32, j].mean()) for j in range(tokens)] for h in range(a.shape[1])]
        mean = [sum(column) / len(column) for column in zip(*local, strict=True)]
        peak = [max(column) for column in zip(*local, strict=True)]
        signals = zip(ranks(mean), ranks(pooled(mean, 9)), ranks(peak), strict=True)
        rows.append([0.5 * x + 0.3 * y + 0.2 * z for x, y, z in signals])
    return torch.tensor(rows)


def scissorhands(layer: LayerFeatures) -> Tensor:
    a, tokens = whole_attention(layer), layer.tokens
    window = range(max(0, tokens - 400), tokens)
    group = a.shape[1]
    counts = torch.zeros(layer.kv_heads, tokens, dtype=torch.float64)
    for i in window:
        counts[:, : i + 1] += (a[:, :, i, : i + 1] >= (1 - 1e-6) / (i + 1)).sum(dim=1) / group
    return torch.tensor([[float(row[j]) / sum(i >= j for i in window) for j in range(tokens)] for row in counts])


def expected_attention(layer: LayerFeatures) -> Tensor:
    keys, values, queries = (exact(layer, name) for name in ("keys", "values", "queries"))
    tokens, width = layer.tokens, layer.head_dim
    if tokens <= 4:
        return torch.zeros(layer.kv_heads, tokens)
    rotation = torch.zeros(width, width, dtype=torch.float64)
    for pair in range(width // 2):
        angles = [position * 10000.0 ** (-2 * pair / width) for position in range(tokens, tokens + 512)]
        cosine, sine = sum(map(math.cos, angles)) / 512, sum(map(math.sin, angles)) / 512
        rotation[pair, pair] = rotation[pair + width // 2, pair + width // 2] = cosine
        rotation[pair + width // 2, pair], rotation[pair, pair + width // 2] = sine, -sine
    expected = torch.zeros(layer.kv_heads, tokens - 4, dtype=torch.float64)
    for head in range(layer.heads):
        own = head // (layer.heads // layer.kv_heads)
        plain = torch.stack([turned_back(layer, queries[head, i], i) for i in range(4, tokens)])
        mean = plain.mean(dim=0)
        spread = torch.zeros(width, width, dtype=torch.float64)
        for query in plain:
            spread += torch.outer(query - mean, query - mean) / len(plain)
        mean, spread = rotation @ mean, rotation @ spread @ rotation.T
        logits = [float(key @ mean / math.sqrt(width) + key @ spread @ key / (2 * width)) for key in keys[own, 4:]]
        expected[own] += torch.tensor(softmax(logits)).double() / (layer.heads // layer.kv_heads)
    scores = expected * torch.stack([torch.stack([value.norm() for value in head[4:]]) for head in values])
    return torch.cat((torch.full((layer.kv_heads, 4), float(scores.max())), scores), dim=1)


def lagkv(layer: LayerFeatures) -> Tensor:
    tokens, lag = layer.tokens, 128
    scores = torch.ones(layer.kv_heads, tokens)
    if tokens < 4 + 2 * lag:
        for j in range(4, tokens):
            scores[:, j] = (j - 4) / (tokens - 4)
        return scores
    for head in range(layer.kv_heads):
        for start in range(4, tokens - 2 * lag + 1, lag):
            worth = [0.0] * lag
            for name in ("keys", "values"):
                rows = exact(layer, name)[head]
                following = rows[start + lag : start + 2 * lag]
                low, high = following.min(dim=0).values, following.max(dim=0).values
                spreads = []
                for row in rows[start : start + lag]:
                    pairs = zip(row.tolist(), low.tolist(), high.tolist(), strict=True)
                    scaled = [(x - a) / (b - a) if b > a else 0.0 for x, a, b in pairs]
                    centre = sum(scaled) / len(scaled)
                    spreads.append(math.sqrt(sum((x - centre) ** 2 for x in scaled) / (len(scaled) - 1)))
                worth = [x + y / 2 for x, y in zip(worth, softmax(spreads), strict=True)]
            scores[head, start : start + lag] = torch.tensor(ranks(worth))
    return scores


def raw_leverage(layer: LayerFeatures, first: int = 0, last: int = 0) -> list[Row]:
    """From the definition: the diagonal of X (XᵀX + 0.01 I)⁻¹ Xᵀ, with the projection that the seed gives."""
    noise = torch.randn(layer.kv_heads, layer.head_dim, 48, generator=layer.view().generator()).double() / math.sqrt(48)
    keys, rows = exact(layer, "keys"), []
    for head in range(layer.kv_heads):
        plain = torch.stack([turned_back(layer, keys[head, i], i) for i in range(first, layer.tokens - last)])
        x = (plain - plain.mean(dim=0)) @ noise[head]
        inverse = torch.linalg.inv(x.T @ x + 0.01 * torch.eye(48, dtype=torch.float64))
        rows.append([float(row @ inverse @ row) for row in x])
    return rows


def raw_noncausal(layer: LayerFeatures, first: int = 0, last: int = 0) -> list[Row]:
    """Column sums of unmasked softmaxes inside chunks of 256, times the value's norm, averaged over 3."""
    inside = slice(first, layer.tokens - last)
    keys, values, queries = (exact(layer, name)[:, inside] for name in ("keys", "values", "queries"))
    group, rows = layer.heads // layer.kv_heads, []
    for own in range(layer.kv_heads):
        received = torch.zeros(keys.shape[1], dtype=torch.float64)
        for head in range(own * group, (own + 1) * group):
            for start in range(0, keys.shape[1], 256):
                chunk = slice(start, start + 256)
                for query in queries[head, chunk]:
                    received[chunk] += (keys[own, chunk] @ query).softmax(dim=-1) / group
        rows.append(pooled([float(a * v.norm()) for a, v in zip(received, values[own], strict=True)], 3))
    return rows


def compactor(layer: LayerFeatures) -> Tensor:
    """At a budget of half the entries."""
    if layer.tokens <= 12:
        return torch.zeros(layer.kv_heads, layer.tokens)
    blend = 1 - max(1, layer.tokens // 2) / layer.tokens
    scores = blend * standardised(raw_leverage(layer, 8, 4)) + standardised(raw_noncausal(layer, 8, 4))
    highest = torch.full((layer.kv_heads, 1), float(scores.max()))
    return torch.cat((highest.expand(-1, 8), scores, highest.expand(-1, 4)), dim=1)


def cur(layer: LayerFeatures) -> Tensor:
    scores = torch.ones(layer.kv_heads, layer.tokens, dtype=torch.float64)
    for name in ("keys", "values"):
        for head, rows in enumerate(exact(layer, name)):
            for j, row in enumerate(rows):
                window = rows[j // 16 * 16 : j // 16 * 16 + 16]
                scores[head, j] *= float(row @ row) / sum(float(other @ other) for other in window)
    return scores


def q_filter(layer: LayerFeatures) -> Tensor:
    keys, queries = exact(layer, "keys"), exact(layer, "queries")
    scores = torch.zeros(layer.kv_heads, layer.tokens, dtype=torch.float64)
    group = layer.heads // layer.kv_heads
    for head, rows in enumerate(queries):
        direction = torch.linalg.svd(rows).Vh[0]
        if sum(float(row @ direction) for row in rows) < 0:
            direction = -direction
        scores[head // group] += keys[head // group] @ direction / group
    return scores


def caote(scores: Tensor, layer: LayerFeatures) -> Tensor:
    values = exact(layer, "values")
    out = torch.zeros(scores.shape, dtype=torch.float64)
    for head, row in enumerate(scores.double().tolist()):
        total = sum(row)
        share = [x / total if total else 0.0 for x in row]
        output = sum(h * v for h, v in zip(share, values[head], strict=True))
        for j, h in enumerate(share):
            out[head, j] = h / max(1 - h, 1e-6) * float((output - values[head, j]).norm())
    return out


def criticalkv(scores: Tensor, layer: LayerFeatures, keep: int) -> Tensor:
    """All but the first stage's entries; those are infinite here, since only that they come first is said."""
    values, matrices = exact(layer, "values"), exact(layer, "output_projection")
    group = layer.heads // layer.kv_heads
    out = torch.zeros(scores.shape, dtype=torch.float64)
    for own, row in enumerate(scores.tolist()):
        best = sorted(range(len(row)), key=lambda j: (row[j], j), reverse=True)[: max(1, keep // 2)]
        for j, score in enumerate(row):
            members = range(own * group, (own + 1) * group)
            norm = sum(float((values[own, j] @ matrices[h]).abs().sum()) for h in members) / group
            out[own, j] = math.inf if j in best else (score + 1e-4) * norm
    return out


def value_key_ratio(layer: LayerFeatures) -> Tensor:
    return exact(layer, "values").norm(dim=-1) / exact(layer, "keys").norm(dim=-1)


def craft(layer: LayerFeatures) -> Tensor:
    keys, values, tokens = exact(layer, "keys"), exact(layer, "values"), layer.tokens
    depth = (layer.layer + 1) / layer.layers
    rows = []
    for head in range(layer.kv_heads):
        plain = torch.stack([turned_back(layer, keys[head, j], j) for j in range(tokens)])
        away = (plain - plain.mean(0)) / plain.std(0, correction=0).clamp(min=1e-6)
        unusual = [max(float((row.abs() ** 4).mean()), 1e-9) for row in away]
        logs = torch.tensor([math.log(x) for x in unusual], dtype=torch.float64)
        common = (logs - logs.mean()) / logs.std(correction=0).clamp(min=1e-6)
        weight = ranks([float(row.norm()) for row in values[head]])
        apart = ranks((-cosine_to_mean(plain[None])[0]).tolist())
        score = [float(c) + 1.5 * depth * w + a for c, w, a in zip(common, weight, apart, strict=True)]
        near = [score[max(0, j - 1) : j + 2] for j in range(tokens)]
        rows.append([sum(x) / len(x) for x in near])
    return torch.tensor(rows)


NAIVE: dict[str, Callable[[LayerFeatures], Tensor]] = {
    "streaming_llm": lambda x: torch.arange(float(x.tokens)).expand(x.kv_heads, -1),
    "knorm": lambda x: -exact(x, "keys").norm(dim=-1),
    "vnorm": lambda x: exact(x, "values").norm(dim=-1),
    "vk_ratio": value_key_ratio,
    "paged_eviction": value_key_ratio,
    "keydiff": lambda x: -cosine_to_mean(exact(x, "keys")),
    "value_diversity": lambda x: -cosine_to_mean(exact(x, "values")),
    "snapkv": snapkv,
    "tova": lambda x: whole_attention(x)[:, :, -1].mean(dim=(0, 1)).expand(x.kv_heads, -1),
    "observed_attention": lambda x: (whole_attention(x).sum(2) / torch.arange(x.tokens, 0, -1)).mean(1),
    "h2o": lambda x: whole_attention(x).sum(2).mean(1),
    "scissorhands": scissorhands,
    "expected_attention": expected_attention,
    "lagkv": lagkv,
    "leverage": lambda x: standardised(raw_leverage(x)),
    "noncausal": lambda x: standardised(raw_noncausal(x)),
    "compactor": compactor,
    "cur": cur,
    "q_filter": q_filter,
    "frc": frc,
    "craft": craft,
}
