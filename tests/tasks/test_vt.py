"""RULER's variable tracking: a chain in order, one worked example, and the wording of the protocol."""

from __future__ import annotations

import re
from itertools import pairwise

from transformers import PreTrainedTokenizerFast

from cachecraft.tasks import Item, load_tasks
from cachecraft.tasks.haystack import NOISE_LINE

OPENING = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"


def make(tokenizer: PreTrainedTokenizerFast, length: int = 2500, index: int = 0) -> Item:
    (task,) = load_tasks(["ruler:vt"])
    return task.item(index, split="test", length=length, seed=0, tokenizer=tokenizer)


def halves(item: Item) -> tuple[str, str]:
    (example,) = (segment for segment in item.segments if segment.name == "example")
    return item.context[: example.end], item.context[example.end :]


def test_the_chain_stands_in_order_in_lines_of_its_own(plain: PreTrainedTokenizerFast) -> None:
    item = make(plain)
    _, main = halves(item)
    assert main.startswith(OPENING)
    assert main.endswith("\n")
    lines = [line for line in main.removeprefix(OPENING).split("\n")[:-1] if line != NOISE_LINE]
    names = item.references
    assert re.fullmatch(rf"VAR {names[0]} = \d{{5}}", lines[0])
    assert lines[1:] == [f"VAR {new} = VAR {old}" for old, new in pairwise(names)]
    assert len(set(names)) == 5
    assert all(re.fullmatch("[A-Z]{5}", name) for name in names)


def test_question_and_prefix_are_the_protocols_words(plain: PreTrainedTokenizerFast) -> None:
    item = make(plain)
    value = re.search(r"= (\d{5})", halves(item)[1])[1]
    assert item.question == f"Question: Find all variables that are assigned the value {value} in the text above."
    assert item.answer_prefix == (
        " Answer: According to the chain(s) of variable assignment in the text above, "
        f"5 variables are assigned the value {value}, they are: "
    )
    assert item.max_new_tokens == 30
    assert item.reference_text == ", ".join(item.references)


def test_the_worked_example_is_a_whole_problem_with_short_names_and_another_value(
    plain: PreTrainedTokenizerFast,
) -> None:
    item = make(plain)
    example, main = halves(item)
    assert example.startswith(OPENING)
    assert example.endswith("\n\n")
    names = re.findall(r"VAR ([A-Z]{3}) =", example)
    assert len(names) == 5
    assert example.rstrip().endswith(f"they are: {', '.join(names)}")
    assert re.search(r"= (\d{5})", example)[1] not in main + item.question
    assert NOISE_LINE in example


def test_the_worked_example_takes_at_most_500_tokens_and_a_quarter_of_the_length(
    plain: PreTrainedTokenizerFast,
) -> None:
    for length, limit in ((1600, 400), (4096, 500)):
        example, _ = halves(make(plain, length))
        taken = len(plain(example)["input_ids"])
        assert limit - 60 < taken <= limit
