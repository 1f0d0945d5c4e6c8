"""Small files of our own in the forms of published benchmarks."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

FLOWERS = ("asters", "lilacs", "irises", "peonies", "tulips", "violets")


def story(number: int, sentences: int = 12) -> str:
    return " ".join(f"In garden {number} bed {bed} holds {FLOWERS[bed % 6]}." for bed in range(sentences))


def longbench_rows(dataset: str = "qasper", count: int = 6, **changes: Any) -> list[dict[str, Any]]:
    return [
        {
            "input": f"What does bed 3 of garden {number} hold?",
            "context": f"Passage 1:\n{story(number)}\nPassage 2:\n{story(number + 100)}\nPassage 3:\nThe end.",
            "answers": ["peonies", "some peonies"],
            "length": 90,
            "dataset": dataset,
            "language": "en",
            "all_classes": None,
            "_id": f"{dataset}{number}",
        }
        | changes
        for number in range(count)
    ]


def v2_rows(count: int = 3) -> list[dict[str, Any]]:
    choices = {f"choice_{letter}": f"{flower} " for letter, flower in zip("ABCD", FLOWERS, strict=False)}
    return [
        {"_id": str(n), "context": story(n), "question": f"What holds bed 1 of garden {n}?", **choices, "answer": "B"}
        for n in range(count)
    ]


def gsm8k_rows(count: int, first: int = 0) -> list[dict[str, Any]]:
    return [
        {"question": f"Add {n} and {n}.", "answer": f"It is {n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}.\n#### {2 * n}"}
        for n in range(first, first + count)
    ]


def math_rows(count: int = 7) -> list[dict[str, Any]]:
    return [
        {
            "problem": f"Half of ${n}$?",
            "solution": rf"It is $\boxed{{\frac{{{n}}}{{2}}}}$.",
            "answer": rf"\frac{{{n}}}{{2}}",
        }
        for n in range(1, count + 1)
    ]


def kv_rows(count: int = 3) -> list[dict[str, Any]]:
    return [
        {"ordered_kv_records": [[f"k{n}{i}", f"v{n}{i}"] for i in range(4)], "key": f"k{n}2", "value": f"v{n}2"}
        for n in range(count)
    ]


def longeval_rows(count: int = 3) -> list[dict[str, Any]]:
    return [
        {
            "expected_number": 100 + n,
            "prompt": f"A record.\n\nline a{n}: <{100 + n}>\nline b{n}: <7>\n\nNow the record is over. Line a{n}? ",
        }
        for n in range(count)
    ]


def mini_file(count: int = 3) -> dict[str, Any]:
    return {
        str(n): {
            "origin_prompt": f"Read this.\n\n{story(n)}\n\nQuestion: bed 2?\nAnswer:",
            "prediction": "",
            "gold": ["irises"],
        }
        for n in range(count)
    }


def line_rows(count: int = 4) -> list[dict[str, Any]]:
    return [
        {"input": f"<s> x{n} = <NUM_LIT:{n}> <EOL> y = x{n} <EOL> print (", "gt": f"x{n} , y )"} for n in range(count)
    ]


def lines(rows: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(row) for row in rows) + "\n"


def write_benchmarks(folder: Path) -> Path:
    """One small file of each form; MiniLongBench's, a gzipped, a zipped one and a pair of text files among them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "qasper.jsonl").write_text(lines(longbench_rows()))
    (folder / "hotpotqa.jsonl").write_text(lines(longbench_rows("hotpotqa")))
    (folder / "trec.jsonl").write_text(lines(longbench_rows("trec", answers=["Date"], all_classes=["Date", "Food"])))
    (folder / "lcc.jsonl").write_text(lines(longbench_rows("lcc", input="", answers=["x = 1"])))
    (folder / "v2.json").write_text(json.dumps(v2_rows()))
    (folder / "train.jsonl").write_text(lines(gsm8k_rows(9)))
    (folder / "test.jsonl").write_text(lines(gsm8k_rows(6, first=50)))
    (folder / "math.jsonl").write_text(lines(math_rows()))
    (folder / "kv.jsonl.gz").write_bytes(gzip.compress(lines(kv_rows()).encode()))
    (folder / "eval.jsonl").write_text(lines(longeval_rows()))
    (folder / "MiniLongBench_hotpotqa.json").write_text(json.dumps(mini_file()))
    with zipfile.ZipFile(folder / "code.zip", "w") as archive:
        archive.writestr("py150/dev.json", lines(line_rows()))
        archive.writestr("java/dev.json", lines([{"input": f"<s> int {x} ; {x}", "gt": "= 1 ;"} for x in "ab"]))
        archive.writestr("py150/literals.json", '{"str": []}')
    (folder / "pairs").mkdir()
    (folder / "pairs" / "one_context.txt").write_text(story(55))
    (folder / "pairs" / "one.md").write_text(
        "# Metadata\n\n- ID: abc\n- Domain: Gardens\n\n# Question\n\nBed 0?\n\n# Choices\n\n"
        + "\n".join(f"- {letter}: {flower}" for letter, flower in zip("ABCD", FLOWERS, strict=False))
        + "\n\n# Answer\n\nA\n"
    )
    return folder


def write_essay(file: Path) -> Path:
    """Prose of our own, enough for three splits."""
    file.write_text(" ".join(f"{story(number, 4)}\n\n" for number in range(60)))
    return file
