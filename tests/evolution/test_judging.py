"""What comes back from a candidate is read with care: whatever the bytes, there is a verdict and no exception."""

from __future__ import annotations

import json
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.evolution.conftest import LAYERS, TOKENS

from cachecraft.evolution.gate import check_source
from cachecraft.sandbox import Ask, Limits, Program, SharedItem, State
from cachecraft.sandbox.faults import FAULT_EXIT
from cachecraft.sandbox.judging import Finished, Request, judge
from cachecraft.sandbox.verdict import packed, packed_size, unpacked
from cachecraft.sandbox.wire import harmless, read_frames

PROGRAM = Program("mine", "def score_tokens(f):\n    return f.keys[..., 0]\n")
SHAPE = (LAYERS, 3, TOKENS)
ASKS = (Ask("one", (10, 5)),)
HEADER = {"seconds": 0.5, "read_keep": False, "forced": [False, True], "computed": [], "notes": ["", "told"]}


def frame(header: object, blob: bytes = b"") -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(4, "little") + len(blob).to_bytes(4, "little") + text + blob


def first(keep: int) -> bytes:
    """Masks that keep the first entries of every head."""
    return packed((torch.arange(TOKENS) < keep).expand(SHAPE))


def finished(answer: bytes, code: int | None = 0, *, late: bool = False) -> Finished:
    return Finished(exit=code, late=late, seconds=1.0, cpu_seconds=0.5, answer=answer, printed=b"")


def verdict_on(answer: bytes, items: dict[str, SharedItem], code: int | None = 0, *, late: bool = False):  # type: ignore[no-untyped-def]
    return judge(Request(PROGRAM, "choose", ASKS), items, Limits(), finished(answer, code, late=late))


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 40), st.randoms(use_true_random=False))
def test_masks_survive_packing(layers: int, heads: int, tokens: int, chance) -> None:  # type: ignore[no-untyped-def]
    masks = torch.tensor([chance.random() < 0.5 for _ in range(layers * heads * tokens)]).view(layers, heads, tokens)
    bits = packed(masks)
    assert len(bits) == packed_size((layers, heads, tokens))
    assert torch.equal(unpacked(bits, (layers, heads, tokens)), masks)


def test_a_sound_answer_is_read_and_counted(items: dict[str, SharedItem]) -> None:
    verdict = verdict_on(frame(HEADER, first(10) + first(5)), items)
    assert verdict.ok
    assert (verdict.choices[0].forced, verdict.choices[0].notes) == ((False, True), ("", "told"))
    assert all(int(mask.sum()) == 3 * 5 for mask in verdict.choices[0].masks(1))


UNSOUND = {
    "too many entries": (frame(HEADER, first(11) + first(5)), State.BROKEN, "keeps 11 of 400"),
    "masks of another budget": (frame(HEADER, first(5) + first(10)), State.BROKEN, "keeps 5 of 400"),
    "too few bytes": (frame(HEADER, first(10)), State.MALFORMED, "bytes of masks"),
    "too many answers": (frame(HEADER, first(10) + first(5)) * 2, State.MALFORMED, "2 answers to 1 question"),
    "no account of itself": (frame({}, first(10) + first(5)), State.MALFORMED, "cannot be read"),
    "an endless time": (
        frame(HEADER | {"seconds": float("inf")}, first(10) + first(5)),
        State.MALFORMED,
        "makes no sense",
    ),
    "a cut record": (frame(HEADER, first(10) + first(5))[:-1], State.MALFORMED, "cut off"),
    "a list for a header": (frame([1]), State.MALFORMED, "no header"),
    "nesting without end": (
        frame({})[:8] and (50_000).to_bytes(4, "little") + bytes(4) + b"[" * 50_000,
        State.MALFORMED,
        "",
    ),
    "nothing": (b"", State.CRASHED, "ended itself with code 0"),
    "a state that only the system gives": (frame({"error": "ok"}), State.MALFORMED, ""),
    "a state that is no text": (frame({"error": ["raised"]}), State.MALFORMED, ""),
    "a fault that did not end it": (frame({"fault": "wrote", "what": "keys", "line": 3}), State.MALFORMED, ""),
}


@pytest.mark.parametrize("case", UNSOUND)
def test_an_unsound_answer_is_rejected(case: str, items: dict[str, SharedItem]) -> None:
    answer, state, words = UNSOUND[case]
    verdict = verdict_on(answer, items)
    assert (verdict.state, verdict.choices) == (state, ())
    assert words in verdict.reason


def test_the_system_is_believed_before_the_candidate(items: dict[str, SharedItem]) -> None:
    sound, excuse = (
        frame(HEADER, first(10) + first(5)),
        frame({"error": "raised", "reason": "Policy mine fell.", "rule": ""}),
    )
    assert verdict_on(sound, items, late=True).state is State.TIMEOUT
    assert verdict_on(sound, items, -signal.SIGXCPU).state is State.TIMEOUT
    assert verdict_on(excuse, items, -signal.SIGXFSZ).state is State.OUTPUT
    assert verdict_on(excuse, items, -signal.SIGSYS).state is State.FORBIDDEN
    assert verdict_on(sound, items, -signal.SIGKILL).state is State.CRASHED
    assert verdict_on(sound, items, 3).state is State.CRASHED
    assert verdict_on(sound, items, None).state is State.CRASHED
    assert verdict_on(excuse, items, 1).reason == "Policy mine fell."


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([*HEADER, "error", "rule", "reason", "fault", "what", "line", "kept", "missing"])


@given(
    records=st.lists(st.tuples(st.dictionaries(KEYS, ANYTHING, max_size=6), st.binary(max_size=20)), max_size=3),
    code=st.sampled_from([0, 1, FAULT_EXIT, -signal.SIGSEGV, None]),
    work=st.sampled_from(["choose", "check"]),
)
def test_no_answer_raises(records, code: int | None, work, items: dict[str, SharedItem]) -> None:  # type: ignore[no-untyped-def]
    asks = ASKS if work == "choose" else ()
    answer = b"".join(frame(header, blob) for header, blob in records)
    verdict = judge(Request(PROGRAM, work, asks), items, Limits(), finished(answer, code))
    assert not verdict.ok or records == [({"kept": True}, b"")]
    assert verdict.ok or verdict.reason.startswith("Policy mine")
    assert verdict.reason.isprintable()


@given(st.binary(max_size=200))
def test_bytes_are_records_or_refused(data: bytes) -> None:
    try:
        records = list(read_frames(data))
    except ValueError:
        return
    assert sum(len(blob) for _, blob in records) <= len(data)


@given(st.text(max_size=700))
def test_any_text_becomes_one_printable_line(text: str) -> None:
    line = harmless(text)
    assert line.isprintable()
    assert len(line) <= 500


@given(st.text(max_size=300) | st.text(alphabet="f.[](){}=:\n torchkeys_0123'\"", max_size=300))
def test_the_gate_has_an_answer_to_any_text(text: str) -> None:
    found = check_source(text)
    assert found
    assert all(isinstance(sentence, str) for sentence in found)
