"""Essays: three regions without shared text, sentence ends, and where woven sentences come to stand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachecraft.errors import TaskError
from cachecraft.tasks.haystack import Region, read_essay, weave


@given(
    units=st.lists(st.text("abc", min_size=1, max_size=4), max_size=12),
    places=st.lists(st.integers(0, 12), max_size=5),
    glue=st.sampled_from([" ", "\n"]),
)
def test_woven_sentences_stand_where_the_spans_say_and_the_units_stay_in_order(
    units: list[str], places: list[int], glue: str
) -> None:
    inserts = [(min(place, len(units)), f"NEEDLE{i}") for i, place in enumerate(sorted(places))]
    text, spans = weave(units, inserts, glue)
    assert [text[a:b] for a, b in spans] == [sentence for _, sentence in inserts]
    pieces = text.split(glue) if text else []
    assert [piece for piece in pieces if not piece.startswith("NEEDLE")] == units
    assert [
        sum(not piece.startswith("NEEDLE") for piece in pieces[: pieces.index(sentence)]) for _, sentence in inserts
    ] == [place for place, _ in inserts]


def test_the_three_regions_are_the_whole_text_cut_at_sentence_ends() -> None:
    essay = read_essay()
    sizes = [len(region.words) for region in essay.regions]
    assert len(sizes) == 3
    assert min(sizes) > 15_000
    assert max(sizes) - min(sizes) < 500
    for region in essay.regions[:-1]:
        assert region.ends[-1] == len(region.words)


def test_a_sentence_ends_neither_at_an_abbreviation_nor_at_a_list_number(tmp_path: Path) -> None:
    file = tmp_path / "essay.txt"
    sentence = "Some things, e.g. The Moon, are far. 1. First comes Dr. Smith (really). Then come others."
    file.write_text(" ".join([sentence] * 40), encoding="utf-8")
    region = read_essay([file]).regions[0]
    lasts = {region.words[end - 1] for end in region.ends}
    assert lasts == {"far.", "(really).", "others."}


@given(start=st.integers(0, 200), count=st.integers(1, 900))
def test_a_passage_reads_on_in_a_circle_and_its_places_follow_whole_sentences(start: int, count: int) -> None:
    sentences = [f"Sentence {i} has{' a few more' * (i % 4)} words." for i in range(40)]
    words = tuple(" ".join(sentences).split())
    region = Region(words, tuple(i for i, word in enumerate(words, start=1) if word.endswith(".")))
    start %= len(region.words)
    passage, places = region.passage(start, count)
    assert passage == [region.words[(start + i) % len(region.words)] for i in range(count)]
    assert places[0] == 0
    assert places == sorted(set(places))
    assert all(passage[place - 1].endswith(".") for place in places[1:])
    assert len(places) - 1 == sum(word.endswith(".") for word in passage)


def test_a_paragraph_that_comes_twice_is_used_once_so_that_no_two_splits_share_it(tmp_path: Path) -> None:
    paragraphs = [f"Paragraph {i} says something of its own here. And it ends." for i in range(60)]
    file = tmp_path / "essay.txt"
    file.write_text("\n\n".join([*paragraphs, "A new one.", *paragraphs]), encoding="utf-8")
    essay = read_essay([file])
    assert sum(len(region.words) for region in essay.regions) == len(" ".join(paragraphs).split()) + 3


def test_the_hash_is_that_of_the_text_and_changes_with_it(tmp_path: Path) -> None:
    file = tmp_path / "essay.txt"
    file.write_text("A short sentence is here. " * 100, encoding="utf-8")
    before = read_essay([file]).sha256
    assert read_essay([file]).sha256 == before
    file.write_text("A short sentence was here. " * 100, encoding="utf-8")
    assert read_essay([file]).sha256 != before


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe\x00bad", "is not UTF-8 text"),
        (b"Too short. To cut.", "too little to cut"),
        (b"endless " * 1000, "too little to cut"),
    ],
)
def test_an_essay_that_cannot_be_used_is_named_in_one_sentence(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    file = tmp_path / "essay.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(TaskError, match=sentence) as caught:
        read_essay([file])
    assert "essay.txt" in str(caught.value)
