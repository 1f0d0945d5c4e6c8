"""Small data of our own in SQuAD's and HotpotQA's form: made-up towns, each fact in one document only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SQUAD_NAME, HOTPOT_NAME = "dev-v2.0.json", "hotpot_dev_distractor_v1.json"


def town(number: int) -> str:
    """A name of its own for each number, none inside another."""
    return f"{('Al', 'Ber', 'Cor', 'Dun', 'Els')[number % 5]}mere {number:03d}"


def paragraph(number: int) -> tuple[str, str]:
    """Text about one town and the one fact that only this text holds."""
    fact = f"{7000 + number} lanterns"
    return (
        f"{town(number)} lies where two slow rivers meet. Its market hall was built from grey stone and is lit by "
        f"{fact} every winter. The people of {town(number)} grow flax and keep bees.",
        fact,
    )


def squad(articles: int = 12, paragraphs: int = 10, *, first: int = 0) -> dict[str, Any]:
    """The whole file; the last question of each paragraph cannot be answered."""
    numbers = iter(range(first, first + articles * paragraphs))
    return {"version": "v2.0", "data": [_article([next(numbers) for _ in range(paragraphs)]) for _ in range(articles)]}


def _article(numbers: list[int]) -> dict[str, Any]:
    return {"title": f"Towns from {numbers[0]}", "paragraphs": [_paragraph(number) for number in numbers]}


def _paragraph(number: int) -> dict[str, Any]:
    text, fact = paragraph(number)
    count = fact.split()[0]
    answers = [{"text": each, "answer_start": text.index(each)} for each in (fact, count)]
    right = {"id": f"a{number}", "question": f"What lights {town(number)}?", "answers": answers, "is_impossible": False}
    wrong = {
        "id": f"b{number}",
        "question": f"Who is the mayor of {town(number)}?",
        "plausible_answers": [],
        "answers": [],
        "is_impossible": True,
    }
    return {"context": text, "qas": [right, wrong]}


def squad_rows(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The same as the hub has it: one row for each question."""
    return [
        {
            "id": asked["id"],
            "title": article["title"],
            "context": part["context"],
            "question": asked["question"],
            "answers": {
                "text": [answer["text"] for answer in asked["answers"]],
                "answer_start": [answer["answer_start"] for answer in asked["answers"]],
            },
        }
        for article in data["data"]
        for part in article["paragraphs"]
        for asked in part["qas"]
    ]


def hotpot(count: int = 48, *, first: int = 2000) -> list[dict[str, Any]]:
    """Questions of two supporting and four other paragraphs each; every third is answered by yes."""
    return [_hotpot(first + 6 * number, number) for number in range(count)]


def _hotpot(first: int, number: int) -> dict[str, Any]:
    numbers = range(first, first + 6)
    answer = "yes" if number % 3 == 0 else paragraph(first + 1)[1]
    return {
        "_id": f"h{number}",
        "question": f"Is {town(first)} older than the place that has {paragraph(first + 1)[1].split()[0]} lights?",
        "answer": answer,
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [[town(first + 4), 0], [town(first + 1), 1]],
        "context": [[town(each), [f"{part}. " for part in paragraph(each)[0].split(". ")]] for each in numbers],
    }


def hotpot_rows(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same as the hub has it: columns instead of pairs."""
    return [
        {
            "id": entry["_id"],
            "question": entry["question"],
            "answer": entry["answer"],
            "supporting_facts": {
                "title": [title for title, _ in entry["supporting_facts"]],
                "sent_id": [place for _, place in entry["supporting_facts"]],
            },
            "context": {
                "title": [title for title, _ in entry["context"]],
                "sentences": [sentences for _, sentences in entry["context"]],
            },
        }
        for entry in entries
    ]


def write_data(folder: Path) -> Path:
    """Both files, and one that is neither."""
    (folder / SQUAD_NAME).write_text(json.dumps(squad(), indent=1), encoding="utf-8")
    (folder / HOTPOT_NAME).write_text(json.dumps(hotpot()), encoding="utf-8")
    (folder / "other.json").write_text('{"version": 3}', encoding="utf-8")
    return folder
