"""Records what a language model proposes in a short search, and says how much of it could be used.

Asks any OpenAI-compatible endpoint; the key comes from the environment, as for `cachecraft discover`. The search is
made small, so that a model on one processor core can answer: one task, one item, short prompts, few features. It can
be stopped and gone on with. Replies are written as JSON lines, the first of which holds the programs that were to be
changed: what a test needs to read and replay them without the endpoint.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from bench_report import RUNS, BenchReport
from subject import add_model_options

from cachecraft import api
from cachecraft.evaluation.store import open_run
from cachecraft.evolution.llm.calls import Answered
from cachecraft.evolution.llm.settings import EndpointError, LlmSettings
from cachecraft.evolution.loop import search
from cachecraft.evolution.population import Population
from cachecraft.evolution.proposers.assembly import Proposing, proposing
from cachecraft.evolution.proposers.protocol import Proposer
from cachecraft.evolution.records import Candidate, Proposal
from cachecraft.evolution.settings import DiscoverySettings, SearchBudget
from cachecraft.models import load
from cachecraft.terminal import one_sentence, say

FEATURES = ("keys", "values", "keys_unrotated", "positions")
PARENT = re.compile(r"^## The program to change: c(\d+)$", re.MULTILINE)


class UpTo:
    """A proposer that ends the search after so many proposals, whether they could be used or not."""

    def __init__(self, inner: Proposer, made: Callable[[], int], most: int) -> None:
        self.name = inner.name
        self._inner, self._made, self._most = inner, made, most

    def ask(self, population: Population, count: int) -> list[Proposal]:
        """What the inner proposer proposes, for at most as many places as are left."""
        left = self._most - self._made()
        return self._inner.ask(population, min(count, left)) if left > 0 else []

    def tell(self, candidate: Candidate) -> None:
        """Pass it on."""
        self._inner.tell(candidate)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    parser.add_argument("--llm-base-url", required=True, help="such as http://localhost:8000/v1")
    parser.add_argument("--llm-model", required=True, help="name of the model there")
    parser.add_argument("--proposals", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--reply-tokens", type=int, default=400, help="tokens of a reply (default: %(default)s)")
    parser.add_argument("--prompt-characters", type=int, default=6000, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=900.0, help="for a proposal, all tries (default: %(default)s)")
    parser.add_argument("--task", default="ruler:niah_single_1", help="default: %(default)s")
    parser.add_argument("--length", type=int, default=512, help="tokens of an item (default: %(default)s)")
    parser.add_argument("--run", type=Path, default=RUNS / "recorded", help="default: runs/recorded")
    parser.add_argument("--out", type=Path, help="where the replies are written (default: replies.jsonl in the run)")
    return parser.parse_args()


def recorded(options: argparse.Namespace) -> tuple[list[Answered], list[Candidate]]:
    """Search with the model's proposals; every call and every candidate."""
    model = load(options.model, dtype="float32", device="cpu", threads=options.threads, progress=print)
    subject = api.subject_of(model)
    settings = DiscoverySettings(
        tasks=(options.task,),
        ratios=(0.75,),
        length=options.length,
        items=1,
        batch=5,
        level="scorer",
        features=FEATURES,
    )
    llm = LlmSettings(
        options.llm_base_url,
        (options.llm_model,),
        reply_tokens=options.reply_tokens,
        prompt_characters=options.prompt_characters,
        deadline=options.seconds,
    )
    how = Proposing("llm", llm)
    how.check()
    of = {"models": [subject.name], "revisions": [subject.revision], "dtypes": [subject.dtype]}
    record = settings.record() | of | how.record()
    open_run(options.run, record, tuple(name for name in record if name != "base_url")).close()
    with proposing(how, options.run, say) as (make, calls):
        assert calls is not None

        def made() -> int:
            return len(proposals(calls.answered_calls()))

        try:
            with search(
                [subject],
                settings,
                SearchBudget(candidates=1_000_000),
                options.run,
                make=lambda conduct: UpTo(make(conduct), made, options.proposals),
                calls=calls,
            ):
                pass
        except EndpointError as error:
            if made() < options.proposals:
                raise
            say(f"The search ended early: {error}")
        with Population(options.run) as population:
            return calls.answered_calls(), population.told()


def proposals(calls: Sequence[Answered]) -> set[tuple[int, int, int]]:
    """Where proposals were asked for, whether they could be used or not; a repair is part of its proposal."""
    return {(call.place.generation, call.place.slot, call.place.round) for call in calls}


def as_lines(calls: Sequence[Answered], told: Sequence[Candidate]) -> str:
    """The replies as JSON lines, the programs that they were asked to change in the first."""
    sources = {each.number: each.source for each in told}
    parents = [PARENT.search(call.messages[1]["content"]) for call in calls]
    numbers = [int(parent[1]) for parent in parents if parent]
    lines: list[object] = [{"programs": {number: sources[number] for number in sorted(set(numbers))}}]
    for call, number in zip(calls, numbers, strict=True):
        place, reply = call.place, call.reply
        at = [place.generation, place.slot, place.round, place.turn]
        lines.append(
            {"at": at, "model": call.model, "parent": number, "finish": reply.finish, "outcome": call.outcome}
            | {"tokens": [reply.tokens_in, reply.tokens_out], "text": reply.text}
        )
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)


def main() -> None:
    """Record, write the replies, and say what became of them."""
    options = parse_options()
    calls, told = recorded(options)
    report = BenchReport("replies", vars(options))
    out = options.out or options.run / "replies.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(as_lines(calls, told), encoding="utf-8")
    used = [call for call in calls if call.outcome == "used"]
    mended = sum(call.place.turn > 0 for call in used)
    tokens_in = sum(call.reply.tokens_in or 0 for call in calls)
    tokens_out = sum(call.reply.tokens_out or 0 for call in calls)
    own = [each for each in told if each.proposal.proposer != "seed"]
    report.say(
        f"{len(proposals(calls))} proposals, {len(calls)} replies, {tokens_in:,} tokens of prompts and "
        f"{tokens_out:,} of replies: {len(used)} proposals became candidates, {mended} of them after the repair"
    )
    counts = Counter(call.outcome for call in calls)
    report.table("Replies", ["what became of them", "replies"], [[name, n] for name, n in counts.most_common()])
    states = Counter(f"{each.state} ({each.stage})" for each in own)
    report.table("Candidates", ["state", "candidates"], [[name, n] for name, n in states.most_common()])
    better = sum(each.gain is not None and each.gain > 0 for each in own)
    report.say(f"{better} candidates are better than the program that they were made from")
    report.keep("replies", dict(counts))
    report.keep("candidates", dict(states) | {"better": better})
    report.say(f"Replies: {out}")
    report.close()


if __name__ == "__main__":
    with one_sentence(lambda: "What was recorded is kept; the same command goes on from there."):
        main()
