"""Scores given tokens over compressed caches: likelihoods, fidelity to the full cache, and what asks for the queries.

Every row is one candidate (policy and budget) of the same sample; nothing is generated here: see
`cachecraft.evaluation.answers`, which does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cachecraft.evaluation.candidates import PASS_TOKENS, Selection, run, shared
from cachecraft.evaluation.traces import Trace
from cachecraft.runtime import compat
from cachecraft.runtime.attention import Observer
from cachecraft.runtime.packed import PackedCache
from cachecraft.runtime.structure import ModelStructure

LOGIT_ROWS = 512  # positions whose logits are held at a time: 512 × 49k × 4 bytes is 100 MB


@dataclass(frozen=True)
class Likelihood:
    """How well a candidate predicts given tokens: mean log-probability (nats), and all right under teacher forcing."""

    mean_logprob: float
    forced_match: bool


@dataclass(frozen=True)
class Fidelity:
    """Agreement with the full cache on its own continuation: mean KL (nats per token), share of equal best tokens."""

    kl: float
    agreement: float


def _forced(
    structure: ModelStructure,
    trace: Trace,
    selections: Sequence[Selection],
    prompt: Sequence[int],
    target: Sequence[int],
    observer: Observer | None = None,
) -> Iterator[tuple[range, Tensor]]:
    """Feed prompt and target to a few candidates at a time; yields which, and (C, N, hidden) states before targets."""
    ids = [*prompt, *target[:-1]]
    at_a_time = max(1, PASS_TOKENS // len(ids))
    for first in range(0, len(selections), at_a_time):
        rows = range(first, min(first + at_a_time, len(selections)))
        context = shared(trace, selections[first : first + at_a_time])
        cache = PackedCache(context.layers, heads=structure.heads, windows=structure.windows)
        cache.admit(context, len(ids))
        hidden = run(structure, cache, [ids] * len(rows), [trace.tokens] * len(rows), observer)
        del cache  # before logits are made
        yield rows, hidden.view(len(rows), len(ids), -1)[:, -len(target) :]


def likelihoods(
    structure: ModelStructure,
    trace: Trace,
    selections: Sequence[Selection],
    prompt: Sequence[int],
    target: Sequence[int],
) -> list[Likelihood]:
    """Mean log-probability of a target's tokens for every candidate.

    Args:
        structure: The model's structure.
        trace: The recorded context.
        selections: For each candidate and layer the kept entries, (G, T) bool.
        prompt: Tokens that follow the context: question, template tail, answer prefix.
        target: The tokens after those, at least one.
    """
    structure.require_room(trace.tokens + len(prompt) + len(target), read=trace.tokens)
    found: dict[int, Likelihood] = {}
    wanted = torch.tensor(list(target), device=structure.model.device)
    with torch.no_grad():
        for rows, hidden in _forced(structure, trace, selections, prompt, target):
            at_a_time = max(1, LOGIT_ROWS // len(target))
            for first in range(0, len(rows), at_a_time):
                scores = compat.logits(structure.model, hidden[first : first + at_a_time])  # (b, N, V)
                picked = scores.gather(-1, wanted.view(1, -1, 1).expand(scores.shape[0], -1, 1)).squeeze(-1)
                logprob = (picked - scores.logsumexp(dim=-1)).mean(dim=-1).tolist()
                right = (scores.argmax(dim=-1) == wanted).all(dim=-1).tolist()
                for row, mean, match in zip(rows[first : first + at_a_time], logprob, right, strict=True):
                    found[row] = Likelihood(float(mean), bool(match))
    return [found[row] for row in range(len(selections))]


def fidelities(
    structure: ModelStructure,
    trace: Trace,
    selections: Sequence[Selection],
    prompt: Sequence[int],
    continuation: Sequence[int],
) -> list[Fidelity]:
    """KL from, and token agreement with, the full cache on its own `continuation`; arguments as `likelihoods`."""
    structure.require_room(trace.tokens + len(prompt) + len(continuation), read=trace.tokens)
    found: dict[int, Fidelity] = {}
    with torch.no_grad():
        ((_, reference),) = _forced(structure, trace, [trace.everything()], prompt, continuation)
        full = compat.logits(structure.model, reference[0]).log_softmax(dim=-1)  # (N, V)
        for rows, hidden in _forced(structure, trace, selections, prompt, continuation):
            for row, states in zip(rows, hidden, strict=True):
                own = compat.logits(structure.model, states).log_softmax(dim=-1)
                divergence = (full.exp() * (full - own)).sum(dim=-1).mean().clamp(min=0)
                agreement = (full.argmax(dim=-1) == own.argmax(dim=-1)).float().mean()
                found[row] = Fidelity(float(divergence), float(agreement))
    return [found[row] for row in range(len(selections))]


def queries_of(structure: ModelStructure, trace: Trace, prompt: Sequence[int], target: Sequence[int]) -> list[Tensor]:
    """The post-RoPE queries of prompt and target under the full cache: for each layer (H, N, D)."""
    seen: list[Tensor] = []
    with torch.no_grad():
        for _ in _forced(
            structure,
            trace,
            [trace.everything()],
            prompt,
            target,
            observer=lambda call: seen.append(call.queries[0]),
        ):
            pass
    return seen
