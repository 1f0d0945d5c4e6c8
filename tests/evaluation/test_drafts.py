"""Guesses of the next tokens: what is guessed, and how far."""

from hypothesis import given
from hypothesis import strategies as st

from cachecraft.evaluation.drafts import LONGEST, UNSURE, Drafter

TOKENS = st.lists(st.integers(0, 5), max_size=40)


def test_a_text_that_repeats_itself_is_guessed_to_go_on_past_its_end():
    drafter = Drafter([9, 1, 2, 3, 1, 2, 3], [], 1)
    drafter.record(0, [1, 2], 2, 2)
    drafter.record(0, [3, 1, 2], 2, 2)
    assert drafter.guess(0, 8) == [3, 1, 2, 3]


def test_the_start_of_the_hint_is_guessed_right_after_the_prompt():
    assert Drafter([4, 5], [6, 7, 8], 1).guess(0, 8) == [6]


def test_what_another_row_has_written_is_guessed_too():
    drafter = Drafter([1], [], 2)
    drafter.record(0, [20, 21, 22, 23, 24], 0, 0)
    drafter.record(1, [20, 21], 1, 1)
    assert drafter.guess(1, 8) == [22, 23]


def test_a_rows_own_text_counts_before_that_of_others():
    drafter = Drafter([1], [], 2)
    drafter.record(0, [20, 21, 30, 31], 0, 0)
    drafter.record(1, [20, 21, 40, 20, 21], 0, 0)
    assert drafter.guess(1, 1) == [40]


def test_one_matching_token_alone_is_trusted_for_little():
    drafter = Drafter([1, 2, 3, 4, 5, 6, 7], [], 1)
    drafter.record(0, [8, 9], 2, 2)
    drafter.record(0, [0, 2], 2, 2)
    assert drafter.guess(0, 8) == [3, 4, 5, 6][:UNSURE]


def test_guesses_grow_while_they_are_right_and_shrink_when_they_are_not():
    drafter = Drafter([1, 1, 1, 1, 1, 1], [], 1)
    lengths = []
    for right in (1, 2, 4, LONGEST, 3):
        guessed = len(drafter.guess(0, 100))
        lengths.append(guessed)
        drafter.record(0, [1] * (right + 1), guessed, right)
    lengths.append(len(drafter.guess(0, 100)))
    assert lengths == [1, 2, 4, LONGEST, LONGEST, 3]


def test_nothing_is_guessed_when_nothing_like_it_was_seen():
    assert Drafter([1, 2, 3], [], 1).guess(0, 8) == []
    assert Drafter([1], [], 1).guess(0, 8) == []


@given(prompt=TOKENS.filter(bool), hint=TOKENS, written=st.lists(st.tuples(st.integers(0, 1), TOKENS), max_size=6))
def test_guesses_never_exceed_what_is_asked_for_and_only_repeat_tokens_seen(prompt, hint, written):
    drafter = Drafter(prompt, hint, 2)
    for row, tokens in written:
        drafter.record(row, tokens, 0, 0)
    seen = {*prompt, *hint, *(token for _, tokens in written for token in tokens)}
    for most in (-1, 0, 1, 3, 100):
        guess = drafter.guess(0, most)
        assert len(guess) <= max(0, min(most, LONGEST))
        assert set(guess) <= seen
