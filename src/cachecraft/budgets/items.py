"""The items that budgets are measured on: each is recorded once, and a whole generation is measured in one batch.

Where a policy's choices are nested, its entries are ranked once for each item and layer, since budgets only say how
many of them stay; other policies decide anew. Nothing here searches or stores results.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from cachecraft.budgets.settings import SearchTask
from cachecraft.chat import token_ids
from cachecraft.errors import RunError
from cachecraft.evaluation.answers import answer_ids
from cachecraft.evaluation.candidates import Selection
from cachecraft.evaluation.endings import Ending
from cachecraft.evaluation.forced import likelihoods
from cachecraft.evaluation.measure import split_prompt
from cachecraft.evaluation.plan import require_regime
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.traces import Trace, TraceStore, layer_features, record
from cachecraft.policy.allocation import apportion
from cachecraft.policy.contract import Policy
from cachecraft.policy.decide import decide
from cachecraft.policy.division import adaptive_counts, decide_adaptive
from cachecraft.policy.features import LayerFeatures
from cachecraft.policy.ranking import Ranking, nested_ranks
from cachecraft.policy.sequence import decide_sequence
from cachecraft.tasks.prompt import render
from cachecraft.tasks.task import Item, Task

TRACE_BYTES = 1 << 30  # traces held in memory; others lie in files that are mapped


@dataclass(frozen=True, eq=False)
class CalibrationItem:
    """An item and its tokens.

    Attributes:
        task: Its task.
        item: The item.
        context: What is compressed.
        follow: Tokens run over the compressed cache.
        targets: The reference answer's tokens, or those of each alias.
        keep: c on this item: entries per kv head.
    """

    task: Task
    item: Item
    context: tuple[int, ...]
    follow: tuple[int, ...]
    targets: tuple[tuple[int, ...], ...]
    keep: int

    def whole(self, target: int) -> int:
        """The least budget of a search for `target` with which a layer keeps this item's whole context."""
        return -(-len(self.context) * target // self.keep)


def scaled(budgets: Sequence[int], target: int, keep: int, tokens: int, layers: int, heads: int) -> Tensor:
    """A vector's budgets on an item whose target differs, as counts.

    Args:
        budgets: A number for each layer, or for each layer and then kv head.
        target: c of the search.
        keep: c of the item.
        tokens: T of the item.
        layers: L.
        heads: G.

    Returns:
        (L, G) int64 in proportion to the budgets, with a mean that is to `keep` as theirs is to `target`.
    """
    total = min(max(round(sum(budgets) * keep / target), len(budgets)), len(budgets) * tokens)
    parts = torch.tensor(apportion(budgets, total, 1, tokens), dtype=torch.int64).view(layers, -1)
    return parts.expand(layers, heads).contiguous()


class Calibration:
    """The items of one split, recorded when they are first measured.

    Attributes:
        items: In the order in which they are measured.
        recording_seconds: Spent on running the model over contexts that vectors are measured on.
    """

    def __init__(
        self,
        subject: Subject,
        tasks: Sequence[Task],
        asked: SearchTask,
        split: str,
        folder: Path,
        *,
        ranked: bool = True,
        adaptive_heads: bool = False,
    ) -> None:
        """Make the items; none is recorded yet.

        Args:
            subject: The model.
            tasks: The tasks.
            asked: How many items of which length.
            split: One of the splits.
            folder: Where recorded items go that memory has no room for; nothing may be there yet.
            ranked: Rank each item once for all that follows; not where policies change all the time.
            adaptive_heads: The heads of a layer share its budget by score.

        Raises:
            TaskError: A task has no such items, or its prompts cannot be measured in the regime.
        """
        self._subject, self._asked = subject, asked
        self._traces = TraceStore(folder, memory_bytes=TRACE_BYTES)
        for task in tasks:
            require_regime(task, asked.regime)
        self._ranked, self._adaptive_heads = ranked, adaptive_heads
        self.recording_seconds = 0.0
        self._ranks: dict[tuple[str, str], list[Ranking] | None] = {}
        count = asked.samples if split == "search" else asked.held_out
        self.items = [self._made(task, index, split) for index in range(count) for task in tasks]

    def _made(self, task: Task, index: int, split: str) -> CalibrationItem:
        subject, asked = self._subject, self._asked
        item = task.item(index, split=split, length=asked.length, seed=asked.seed, tokenizer=subject.tokenizer)
        context, follow = split_prompt(render(subject.tokenizer, item), asked.regime)
        targets = tuple(tuple(token_ids(subject.tokenizer, text)) for text in item.reference_texts)
        return CalibrationItem(task, item, context, follow, targets, asked.budget.entries(len(context)))

    def by_counts(self, number: int, candidates: Sequence[tuple[Policy, Tensor]]) -> list[float]:
        """Fitness of candidates on an item, each with the policy that scores and (L, G) int64 counts.

        Where heads share by score, a layer's counts are alike and say what its heads keep on average.
        """
        each = self.items[number]
        groups: dict[str, tuple[Policy, list[int]]] = {}
        for place, (policy, _) in enumerate(candidates):
            groups.setdefault(policy.id, (policy, []))[1].append(place)
        masks: list[list[Tensor]] = [[] for _ in candidates]
        deciding = []
        for policy, places in groups.values():
            ranks = self._ranks_of(each, policy) if self._ranked else None
            if ranks is None:
                deciding.append((policy, places))
                continue
            for place in places:
                counts = candidates[place][1]
                masks[place] = [self._kept(own, count) for own, count in zip(ranks, counts, strict=True)]
        if deciding:
            for layer, features in enumerate(self._layers(self._trace(each))):
                for policy, places in deciding:
                    wanted = [candidates[place][1][layer] for place in places]
                    if self._adaptive_heads:
                        decided = decide_adaptive(policy, features, [int(own[0]) for own in wanted])
                    else:
                        decided = decide(policy, features, wanted)
                    for place, decision in zip(places, decided, strict=True):
                        masks[place].append(decision.mask.cpu())
        return self._measured(each, self._trace(each), masks)

    def by_policy(self, number: int, policies: Sequence[Policy]) -> list[tuple[float, str]]:
        """Fitness of policies, each with its allocation, on an item, and what of it had to give way ("" for nothing).

        The item is recorded anew and not kept.
        """
        each = self.items[number]
        trace = record(self._subject.structure, each.context)
        layers = partial(self._layers, trace)
        masks, notes = [], []
        for policy in policies:
            (decisions,) = decide_sequence(policy, layers, [each.keep])
            masks.append([made.mask.cpu() for made in decisions])
            notes.append(next((made.note for made in decisions if made.note), ""))
        return list(zip(self._measured(each, trace.without_queries(), masks), notes, strict=True))

    def _trace(self, each: CalibrationItem) -> Trace:
        held = self._traces.get(each.item.id)
        if held is None:
            began = time.perf_counter()
            held = record(self._subject.structure, each.context)
            self.recording_seconds += time.perf_counter() - began
            self._traces.put(each.item.id, held)
        return held.on(self._subject.structure)

    def _layers(self, trace: Trace) -> Iterator[LayerFeatures]:
        return layer_features(self._subject.structure, self._subject.tokenizer, trace)

    def _kept(self, ranking: Ranking, counts: Tensor) -> Tensor:
        """(G, T) bool of a layer, at counts (G,), which are alike where the heads are to share them by score."""
        own = adaptive_counts(ranking.scored, int(counts[0])) if self._adaptive_heads else counts
        return ranking.ranks < own.unsqueeze(1)

    def _ranks_of(self, each: CalibrationItem, policy: Policy) -> list[Ranking] | None:
        """For each compressed layer the ranking that serves every budget; None where there is none."""
        key = (each.item.id, policy.id)
        if key not in self._ranks:
            trace = self._trace(each)
            found = [nested_ranks(policy, features) for features in self._layers(trace)]
            # On the CPU, where selections are: one copy serves every candidate.
            nested = [replace(ranking, ranks=ranking.ranks.cpu()) for ranking in found if ranking is not None]
            self._ranks[key] = nested if len(nested) == len(found) else None
            if self._ranks[key] is not None:
                self._traces.put(each.item.id, trace.without_queries())
        return self._ranks[key]

    def _measured(self, each: CalibrationItem, trace: Trace, masks: Sequence[Sequence[Tensor]]) -> list[float]:
        structure = self._subject.structure
        selections: list[Selection] = []
        for own in masks:
            whole = trace.everything()  # which is what stays of layers that are not compressed
            for layer, mask in zip(structure.compressed, own, strict=True):
                whole[layer] = mask
            selections.append(whole)
        if self._asked.fitness == "answer":
            found = self._answered(each, trace, selections)
        else:
            aliases = [likelihoods(structure, trace, selections, each.follow, target) for target in each.targets]
            found = [math.exp(max(one.mean_logprob for one in ones)) for ones in zip(*aliases, strict=True)]
        if bad := [value for value in found if not math.isfinite(value)]:
            raise RunError(f"The model gave a fitness of {bad[0]} on {each.item.task}; check its dtype and weights.")
        return found

    def _answered(self, each: CalibrationItem, trace: Trace, selections: Sequence[Selection]) -> list[float]:
        structure, item = self._subject.structure, each.item
        hint = [*each.targets[0], *structure.stop_ids]
        ending = Ending(self._subject.tokenizer, item.stop)
        ids = answer_ids(structure, trace, selections, each.follow, item.max_new_tokens, hint=hint, ending=ending)
        return [float(each.task.score(ending.text(answer), item)) for answer in ids]
