"""Runs the question over compressed caches: greedy answers, likelihoods and fidelity, candidates as the batch.

Every row is one candidate (policy and budget) of the same sample: all rows share the question's tokens and their
true positions, and differ in what is left of the context. Rows of like length share a buffer, so that a batch stays
within a limit of memory and has little padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cachecraft.evaluation.drafts import Drafter
from cachecraft.evaluation.traces import Trace
from cachecraft.runtime import compat
from cachecraft.runtime.attention import Observer, attending
from cachecraft.runtime.packed import PackedCache
from cachecraft.runtime.structure import ModelStructure

Selection = Sequence[Tensor]  # for each layer the kept entries, (G, T) bool

BATCH_BYTES = 640 << 20
PADDING = 0.3  # share of a row's buffer that may be padding before it gets a group of its own
GROUP_ROWS = 4  # more rows mean fewer calls, but more padding where few of them have many guesses
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


def batches(
    structure: ModelStructure, trace: Trace, selections: Sequence[Selection], new_tokens: int, limit: int = BATCH_BYTES
) -> Iterator[list[list[int]]]:
    """Divide candidates into batches of groups.

    Args:
        structure: The model's structure.
        trace: The recorded context.
        selections: For each candidate and layer the kept entries, (G, T) bool.
        new_tokens: Tokens that each candidate will take after the context.
        limit: Bytes of cache that one batch may hold, padding included; a single candidate may exceed it.

    Yields:
        Batches; each is a list of groups of at most `GROUP_ROWS` candidates of like length, longest first.
    """
    lengths = [max(int(mask.sum(dim=-1).max()) for mask in selection) for selection in selections]
    per_token = trace.bytes_per_entry
    batch: list[list[int]] = []
    held, longest = 0, 0
    for index in sorted(range(len(selections)), key=lambda i: -lengths[i]):
        fits = (
            bool(batch)
            and len(batch[-1]) < GROUP_ROWS
            and lengths[index] + new_tokens >= (1 - PADDING) * (longest + new_tokens)
        )
        size = ((longest if fits else lengths[index]) + new_tokens) * per_token
        if batch and held + size > limit:
            yield batch
            batch, held, fits = [], 0, False
            size = (lengths[index] + new_tokens) * per_token
        if fits:
            batch[-1].append(index)
        else:
            batch.append([index])
            longest = lengths[index]
        held += size
    if batch:
        yield batch


def _cache(
    structure: ModelStructure,
    trace: Trace,
    selections: Sequence[Selection],
    groups: Sequence[Sequence[int]],
    room: int,
) -> PackedCache:
    structure.require_packable(trace.tokens + room)
    pairs = [(layer.keys, layer.values) for layer in trace.layers]
    return PackedCache(pairs, selections, groups, heads=structure.heads, room=room)


def _forward(
    structure: ModelStructure, cache: PackedCache, feeds: Sequence[Sequence[int]], firsts: Sequence[int]
) -> Tensor:
    """Run each row's new tokens, the first of them at position firsts[row]; (M, hidden) packed final states."""
    cache.begin([len(feed) for feed in feeds])
    ids = [token for feed in feeds for token in feed]
    positions = [first + i for feed, first in zip(feeds, firsts, strict=True) for i in range(len(feed))]
    device = structure.model.device
    hidden = compat.hidden_states(
        structure.model, torch.tensor([ids], device=device), torch.tensor([positions], device=device), cache
    )
    return hidden[0]


def greedy(
    structure: ModelStructure,
    cache: PackedCache,
    first: int,
    prompt: Sequence[int],
    max_new_tokens: int,
    hint: Sequence[int] = (),
) -> dict[int, list[int]]:
    """Greedy continuation of `prompt` over each row of a cache, until a stop token or `max_new_tokens`.

    Args:
        structure: The model's structure.
        cache: The rows, with room for prompt and answer; used up by the call.
        first: Position of the prompt's first token.
        prompt: Tokens that every row begins with, at least one.
        max_new_tokens: The most tokens to generate.
        hint: A likely answer; speeds things up when right and changes nothing else.

    Returns:
        For each row its new token ids, without the stop token.
    """
    model = structure.model
    answers: dict[int, list[int]] = {row: [] for row in cache.rows}
    if max_new_tokens < 1:
        return answers
    lines = {row: line for line, row in enumerate(answers)}
    drafter = Drafter(prompt, hint, len(lines))
    sure = {row: list(prompt) for row in answers}  # tokens that the row goes on with, and is still to be fed
    guesses: dict[int, list[int]] = {row: [] for row in answers}
    position = dict.fromkeys(answers, first)
    with attending(model, cache=cache):
        while rows := cache.rows:
            hidden = _forward(structure, cache, [sure[r] + guesses[r] for r in rows], [position[r] for r in rows])
            asked = _asked([(len(sure[row]), len(guesses[row])) for row in rows])
            if len(asked) < len(hidden):
                hidden = hidden[torch.tensor(asked, device=hidden.device)]
            chosen = iter(compat.best_tokens(model, hidden).tolist())
            accepted = []
            finished: set[int] = set()
            for row in rows:
                guessed = guesses[row]
                own = [next(chosen) for _ in range(len(guessed) + 1)]
                right = next((i for i, token in enumerate(guessed) if token != own[i]), len(guessed))
                accepted.append(len(sure[row]) + right)
                position[row] += accepted[-1]
                new = own[: right + 1]  # what follows the first wrong guess answers tokens that are not there
                ended = next((i for i, token in enumerate(new) if token in structure.stop_ids), None)
                answers[row] += new[:ended]
                left = max_new_tokens - len(answers[row])
                if ended is not None or left < 1:
                    finished.add(row)
                    continue
                drafter.record(lines[row], new, len(guessed), right)
                sure[row], guesses[row] = new[-1:], drafter.guess(lines[row], left - 1)
            cache.accept(accepted)
            cache.drop(finished)
    return answers


def _asked(fed: Sequence[tuple[int, int]]) -> list[int]:
    """Packed places whose next token is wanted: of (sure, guessed) tokens the last sure one and all guessed."""
    places: list[int] = []
    end = 0
    for sure, guessed in fed:
        end += sure + guessed
        places += range(end - guessed - 1, end)
    return places


def answer_ids(
    structure: ModelStructure,
    trace: Trace,
    selections: Sequence[Selection],
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    hint: Sequence[int] = (),
    limit: int = BATCH_BYTES,
) -> list[list[int]]:
    """Greedy answers of every candidate.

    Args:
        structure: The model's structure.
        trace: The recorded context.
        selections: For each candidate and layer the kept entries, (G, T) bool.
        prompt: Tokens that follow the context: question, template tail, answer prefix.
        max_new_tokens: The most tokens to generate.
        hint: A likely answer; speeds things up when right and changes nothing else.
        limit: Bytes of cache that one batch may hold.

    Returns:
        For each candidate its new token ids, without the stop token.
    """
    structure.require_room(trace.tokens + len(prompt) + max_new_tokens, read=trace.tokens)
    answers: dict[int, list[int]] = {}
    room = len(prompt) + max_new_tokens
    with torch.no_grad():
        for groups in batches(structure, trace, selections, room, limit):
            cache = _cache(structure, trace, selections, groups, room)
            answers |= greedy(structure, cache, trace.tokens, prompt, max_new_tokens, hint)
            del cache  # before the next batch's is made: the limit is for one
    return [answers[row] for row in range(len(selections))]


def _forced(
    structure: ModelStructure,
    trace: Trace,
    selections: Sequence[Selection],
    prompt: Sequence[int],
    target: Sequence[int],
    limit: int,
    observer: Observer | None = None,
) -> Iterator[tuple[list[int], Tensor]]:
    """Feed prompt and target to each batch of candidates; yields rows and (C, N, hidden) states before each target."""
    ids = [*prompt, *target[:-1]]
    for groups in batches(structure, trace, selections, len(ids), limit):
        cache = _cache(structure, trace, selections, groups, len(ids))
        rows = cache.rows
        with attending(structure.model, cache=cache, observer=observer):
            hidden = _forward(structure, cache, [ids] * len(rows), [trace.tokens] * len(rows))
        del cache  # before the next batch's is made, and while logits are
        yield rows, hidden.view(len(rows), len(ids), -1)[:, -len(target) :]


def likelihoods(
    structure: ModelStructure,
    trace: Trace,
    selections: Sequence[Selection],
    prompt: Sequence[int],
    target: Sequence[int],
    limit: int = BATCH_BYTES,
) -> list[Likelihood]:
    """Mean log-probability of the target's tokens after the prompt, for every candidate; arguments as `answer_ids`."""
    structure.require_room(trace.tokens + len(prompt) + len(target), read=trace.tokens)
    found: dict[int, Likelihood] = {}
    wanted = torch.tensor(list(target), device=structure.model.device)
    with torch.no_grad():
        for rows, hidden in _forced(structure, trace, selections, prompt, target, limit):
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
    limit: int = BATCH_BYTES,
) -> list[Fidelity]:
    """KL from, and token agreement with, the full cache on its own `continuation`; arguments as `answer_ids`."""
    structure.require_room(trace.tokens + len(prompt) + len(continuation), read=trace.tokens)
    found: dict[int, Fidelity] = {}
    with torch.no_grad():
        ((_, reference),) = _forced(structure, trace, [trace.everything()], prompt, continuation, limit)
        full = compat.logits(structure.model, reference[0]).log_softmax(dim=-1)  # (N, V)
        for rows, hidden in _forced(structure, trace, selections, prompt, continuation, limit):
            for row, states in zip(rows, hidden, strict=True):
                own = compat.logits(structure.model, states).log_softmax(dim=-1)
                divergence = (full.exp() * (full - own)).sum(dim=-1).mean().clamp(min=0)
                agreement = (full.argmax(dim=-1) == own.argmax(dim=-1)).float().mean()
                found[row] = Fidelity(float(divergence), float(agreement))
    return [found[row] for row in range(len(selections))]


def queries_of(
    structure: ModelStructure, trace: Trace, prompt: Sequence[int], target: Sequence[int], limit: int = BATCH_BYTES
) -> list[Tensor]:
    """The post-RoPE queries of prompt and target under the full cache: for each layer (H, N, D)."""
    seen: list[Tensor] = []
    with torch.no_grad():
        for _ in _forced(
            structure,
            trace,
            [trace.everything()],
            prompt,
            target,
            limit,
            observer=lambda call: seen.append(call.queries[0]),
        ):
            pass
    return seen
