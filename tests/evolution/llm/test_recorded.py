"""Replies that a real model gave (`benchmarks/record_replies.py`, Qwen2.5-Coder-1.5B-Instruct) read again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cachecraft.evolution.gate import check_source
from cachecraft.evolution.interface import Interface, check_edit
from cachecraft.evolution.llm.faults import Fault, ReplyError
from cachecraft.evolution.llm.replies import read_reply
from cachecraft.evolution.program import program_id

LINES = [
    json.loads(line)
    for line in (Path(__file__).parent / "recorded" / "qwen2.5-coder-1.5b.jsonl").read_text("utf-8").splitlines()
]
PROGRAMS, REPLIES = LINES[0]["programs"], LINES[1:]
INTERFACE = Interface("scorer", features=frozenset({"keys", "values", "keys_unrotated", "positions"}))
UNSEEN = ("used", Fault.KNOWN.value)  # told apart by the programs of the run, which are not in the file


def outcome(reply: dict[str, Any]) -> str:
    """What becomes of a reply as far as the reply itself can tell."""
    parent = PROGRAMS[str(reply["parent"])]
    try:
        edit = read_reply(reply["text"], parent, finish=reply["finish"])
    except ReplyError as error:
        return error.fault.value
    try:
        same = program_id(edit.source) == program_id(parent)
    except SyntaxError:
        return Fault.SYNTAX.value
    if same:
        return Fault.UNCHANGED.value
    if check_source(edit.source):
        return Fault.NOT_ALLOWED.value
    return Fault.OUTSIDE.value if check_edit(parent, edit.source, INTERFACE) else "used"


@pytest.mark.parametrize("reply", REPLIES, ids=lambda reply: "-".join(map(str, reply["at"])))
def test_a_recorded_reply_is_judged_as_it_was(reply: dict[str, Any]) -> None:
    expected = reply["outcome"]
    assert outcome(reply) == ("used" if expected in UNSEEN else expected)


def test_the_record_holds_at_least_thirty_proposals_and_what_the_docs_say_of_them() -> None:
    assert len({tuple(reply["at"][:3]) for reply in REPLIES}) == 35
    counts = Counter(reply["outcome"] for reply in REPLIES)
    assert (len(REPLIES), counts["used"], counts["no edit"], counts["cut off"]) == (66, 6, 28, 11)
