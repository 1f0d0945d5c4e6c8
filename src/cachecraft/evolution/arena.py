"""Where candidates are measured: one model's recorded items, and the lines between which fitness is told.

An item is recorded once: its trace lies in a file that the sandbox maps and the model's pass reads, and the full cache,
random draws and a few known policies are scored on it. Candidates are then scored as a batch. Nothing here runs a
candidate: choices come from outside, as masks.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cachecraft.chat import token_ids
from cachecraft.errors import CacheCraftError
from cachecraft.evaluation.candidates import Selection
from cachecraft.evaluation.forced import Likelihood, likelihoods, queries_of
from cachecraft.evaluation.measure import split_prompt
from cachecraft.evaluation.selections import Subject
from cachecraft.evaluation.traces import Trace, TracedLayer, layer_features, record
from cachecraft.evolution.settings import DiscoverySettings
from cachecraft.policy.contract import load_policy
from cachecraft.policy.decide import decide
from cachecraft.policy.view import Features
from cachecraft.runtime.structure import ModelStructure
from cachecraft.sandbox import SharedItem, share
from cachecraft.tasks.prompt import render
from cachecraft.tasks.task import Task

RANDOM_DRAWS = 3
ANCHORS = ("keydiff", "value_diversity", "vk_ratio", "vnorm")  # they tell how hard an item is
ELIGIBLE = 0.2  # least distance of full and random, in exp of the mean log-likelihood


@dataclass(frozen=True, eq=False)
class ArenaItem:
    """A recorded item.

    Attributes:
        name: What the sandbox knows it by.
        task: Name of its task.
        shared: Its arrays, mapped from a file.
        keeps: For each ratio the entries kept per kv head.
        follow: Tokens run over the compressed cache.
        target: The reference answer's tokens.
        full: What the whole cache scores.
        random: For each ratio the mean of a few random draws.
        anchors: For each ratio the mean of the anchors.
        ids: The context's tokens.
    """

    name: str
    task: str
    shared: SharedItem
    keeps: tuple[int, ...]
    follow: tuple[int, ...]
    target: tuple[int, ...]
    full: float
    random: tuple[float, ...]
    anchors: tuple[float, ...]
    ids: tuple[int, ...]

    def trace(self, structure: ModelStructure) -> Trace:
        """What the model's pass reads, on mapped arrays or, for a model on another device, copies: without queries."""
        layers = []
        for layer in range(self.shared.shape[0]):
            queries, keys, values = (self.shared.array(layer, name) for name in ("queries", "keys", "values"))
            layers.append(TracedLayer(queries[:, :0], keys, values, None))
        return Trace(self.ids, tuple(layers)).on(structure)


class Arena:
    """The items of one model, recorded when first asked for."""

    def __init__(self, subject: Subject, tasks: Sequence[Task], settings: DiscoverySettings, folder: Path) -> None:
        """Begin with no item recorded.

        Args:
            subject: The model.
            tasks: What it is measured on.
            settings: The discovery's.
            folder: Where recorded items go; emptied, since they are cheap to record again.
        """
        self.subject, self.tasks, self.settings, self._folder = subject, list(tasks), settings, folder
        self._policies = [load_policy(f"random:draw={draw}") for draw in range(RANDOM_DRAWS)]
        self._policies += [load_policy(name) for name in ANCHORS]
        self._items: dict[tuple[str, int], ArenaItem] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)

    def items(self, first: int, last: int) -> list[ArenaItem]:
        """Items first … last - 1 of every task of the search split, the tasks in turn."""
        return [self._item("search", task, index) for index in range(first, last) for task in self.tasks]

    def distances(self, split: str, count: int) -> dict[str, float]:
        """For each task how far apart full and random are, as shares in [0, 1], on `count` items of a split."""
        found = {}
        for task in self.tasks:
            items = [self._item(split, task, index) for index in range(count)]
            full = sum(math.exp(item.full) for item in items) / count
            lines = [math.exp(value) for item in items for value in item.random]
            found[task.name] = full - sum(lines) / len(lines)
        return found

    def keep_tasks(self, names: Sequence[str]) -> None:
        """Measure on these tasks only from now on."""
        self.tasks = [task for task in self.tasks if task.name in names]

    def likelihoods(self, item: ArenaItem, selections: Sequence[Selection]) -> list[Likelihood]:
        """Score choices for an item as one batch."""
        structure = self.subject.structure
        return likelihoods(structure, item.trace(structure), selections, item.follow, item.target)

    def error(self, item: ArenaItem, selections: Sequence[Selection]) -> list[float]:
        """How far each choice moves the attention's output under the question's and answer's queries.

        Returns:
            For each choice the mean over layers of |kept - full| / |full|, norms over heads, queries and channels.
        """
        structure = self.subject.structure
        trace = item.trace(structure)
        queries = queries_of(structure, trace, item.follow, item.target)
        totals = [0.0] * len(selections)
        for index, (layer, asked) in enumerate(zip(trace.layers, queries, strict=True)):
            heads, _, width = layer.keys.shape
            grouped = asked.float().reshape(heads, -1, width)  # (G, H/G * N, D)
            logits = grouped @ layer.keys.float().transpose(1, 2) * structure.scaling(index)
            weights = (logits - logits.amax(dim=-1, keepdim=True)).exp()
            values = layer.values.float()
            full = (weights @ values) / weights.sum(dim=-1, keepdim=True)
            for number, selection in enumerate(selections):
                kept = weights * selection[index].to(weights.device).unsqueeze(1)
                output = (kept @ values) / kept.sum(dim=-1, keepdim=True).clamp(min=1e-30)
                totals[number] += float((output - full).norm() / full.norm())
        return [total / len(queries) for total in totals]

    def _item(self, split: str, task: Task, index: int) -> ArenaItem:
        key = (f"{split} {task.name}", index)
        if key not in self._items:
            self._items[key] = self._recorded(split, task, index)
        return self._items[key]

    def _recorded(self, split: str, task: Task, index: int) -> ArenaItem:
        subject, settings = self.subject, self.settings
        made = task.item(index, split=split, length=settings.length, seed=settings.seed, tokenizer=subject.tokenizer)
        context, follow = split_prompt(render(subject.tokenizer, made), "agnostic")
        target = tuple(token_ids(subject.tokenizer, made.reference_texts[0]))
        trace = record(subject.structure, context)
        name = f"{split}-{task.name.replace(':', '-')}-{index}"
        path = self._folder / f"{name}.arrays"
        features = layer_features(subject.structure, subject.tokenizer, trace)
        shared = share(path, features, warm=_heavy, weights=self._folder / "weights.arrays")
        keeps = tuple(budget.entries(len(context)) for budget in settings.budgets)
        lines = self._lines(shared, keeps)
        values = [
            each.mean_logprob
            for each in likelihoods(subject.structure, trace, [trace.everything(), *lines], follow, target)
        ]
        by_ratio = torch.tensor(values[1:]).view(len(self._policies), len(keeps))
        return ArenaItem(
            name=name,
            task=task.name,
            shared=shared,
            keeps=keeps,
            follow=follow,
            target=target,
            full=values[0],
            random=tuple(by_ratio[:RANDOM_DRAWS].mean(dim=0).tolist()),
            anchors=tuple(by_ratio[RANDOM_DRAWS:].mean(dim=0).tolist()),
            ids=context,
        )

    def _lines(self, shared: SharedItem, keeps: Sequence[int]) -> list[list[Tensor]]:
        """What random draws and anchors keep, a policy after the other and its ratios in order."""
        chosen: dict[tuple[int, int], list[Tensor]] = {}
        for layer in shared.layers():
            counts = [torch.full((layer.kv_heads,), keep, dtype=torch.int64) for keep in keeps]
            for number, policy in enumerate(self._policies):
                for ratio, decision in enumerate(decide(policy, layer, counts)):
                    chosen.setdefault((number, ratio), []).append(decision.mask)
        return [chosen[key] for key in sorted(chosen)]


def _heavy(f: Features) -> None:
    """The features that candidates should find computed."""
    f.attention_received()
    for span in (16, 32, 64):
        f.local_attention_received(span)
    f.window_attention(64)


def eligible(arena: Arena, count: int) -> list[str]:
    """The tasks on which policies can be told apart, by `count` validation items.

    Raises:
        CacheCraftError: There is none; says how far apart the lines are on each.
    """
    distances = arena.distances("validation", count)
    good = [task for task, distance in distances.items() if distance >= ELIGIBLE]
    if not good:
        told = ", ".join(f"{task} {distance:.2f}" for task, distance in distances.items())
        raise CacheCraftError(
            f"No policy can be told apart on these tasks with {arena.subject.name}: between the full cache and a "
            f"random one lie {told}, and at least {ELIGIBLE} is needed; choose tasks that the model can do."
        )
    return good


@dataclass(frozen=True)
class Scale:
    """What turns log-likelihoods into recovered shares: fixed once for a run, from the first items.

    Attributes:
        distance: By model, task and ratio, the mean of full less random.
        level: By model, task and ratio, the anchors' mean recovered share.
    """

    distance: Mapping[tuple[str, str, int], float]
    level: Mapping[tuple[str, str, int], float]

    @classmethod
    def of(cls, arenas: Sequence[Arena], count: int) -> Scale:
        """From the first `count` items of each task."""
        distance: dict[tuple[str, str, int], float] = {}
        level: dict[tuple[str, str, int], float] = {}
        for arena in arenas:
            for task in arena.tasks:
                items = [item for item in arena.items(0, count) if item.task == task.name]
                for ratio in range(len(arena.settings.ratios)):
                    key = (arena.subject.name, task.name, ratio)
                    apart = sum(item.full - item.random[ratio] for item in items) / len(items)
                    distance[key] = max(apart, 1e-3)
                    gained = sum(item.anchors[ratio] - item.random[ratio] for item in items) / len(items)
                    level[key] = gained / distance[key]
        return cls(distance, level)

    def recovered(self, model: str, item: ArenaItem, ratio: int, value: float) -> float:
        """Share of the way from random to full, 0 to 1 for most, corrected for how hard the item is.

        An item on which the known policies do better than on the others counts for less, so that candidates that were
        measured on different items can be compared.
        """
        key = (model, item.task, ratio)
        return (value - item.anchors[ratio]) / self.distance[key] + self.level[key]
