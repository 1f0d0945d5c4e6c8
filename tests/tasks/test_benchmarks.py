"""Published benchmarks from files: prompts in their words, splits that share nothing, lengths that hold."""

from __future__ import annotations

import gzip
import json
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.tasks.benchmark_data import lines, longbench_rows, mini_file, write_benchmarks, write_essay
from transformers import PreTrainedTokenizerFast

from cachecraft.errors import TaskError, UnknownNameError
from cachecraft.tasks import SPLITS, Item, Sources, Task, choose_tasks, load_tasks, render, task_names
from cachecraft.tasks.catalogue import ABOUT, MEASURES
from cachecraft.tasks.registry import FAMILIES
from cachecraft.tasks.task import ALL

LONG = 6000
LB = {"input": "?", "context": "c", "answers": ["a"]}
GSM = {"question": "?", "answer": "#### 3"}
NAMES = (
    "longbench:qasper",
    "longbench:hotpotqa",
    "longbench:trec",
    "longbench:lcc",
    "longbench_v2",
    "mini_longbench:hotpotqa",
    "gsm8k",
    "math",
    "code:lcc",
    "code:line_python",
    "code:line_java",
    "kv_retrieval",
    "longeval",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmarks(tmp_path_factory.mktemp("benchmarks") / "data")


@pytest.fixture(scope="module")
def made(folder: Path) -> dict[str, Task]:
    return {task.name: task for task in load_tasks(NAMES, sources=Sources(data=(str(folder),)))}


def take(task: Task, tokenizer: PreTrainedTokenizerFast, index: int = 0, length: int = LONG, split: str = ALL) -> Item:
    return task.item(index, split=split, length=length, seed=0, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("name", "size", "question", "metric_of_reference"),
    [
        ("longbench:qasper", 6, "Do not provide any explanation.\n\nQuestion: What does bed 3 of garden ", 1),
        ("longbench:trec", 6, "\nWhat does bed 3", 1),
        ("longbench:lcc", 6, "Next line of code:\n", 1),
        ("longbench_v2", 4, "\n</text>\n\nWhat is the correct answer to this question: ", 0),
        ("mini_longbench:hotpotqa", 3, "", 1),
        ("gsm8k", 6, "Q: Add ", 0),
        ("math", 3, "Problem:\nHalf of", 0),
        ("code:line_python", 4, "print (", 1),
        ("code:line_java", 2, "", 1),
        ("kv_retrieval", 3, 'Key: "', 1),
        ("longeval", 3, "\nNow the record is over.", 1),
    ],
)
def test_each_benchmark_is_read_and_asked_in_its_own_words(
    name: str,
    size: int,
    question: str,
    metric_of_reference: float,
    made: dict[str, Task],
    plain: PreTrainedTokenizerFast,
) -> None:
    task = made[name]
    assert task.size(ALL) == size
    items = [take(task, plain, index) for index in range(size)]
    assert len({item.id for item in items}) == size
    assert all(question in item.question and item.context for item in items)
    assert all(task.score(item.references[0], item) == pytest.approx(metric_of_reference) for item in items)
    assert task.score("", items[0]) == 0


def test_each_item_is_in_one_split_and_all_holds_every_one(
    made: dict[str, Task], plain: PreTrainedTokenizerFast
) -> None:
    for name in ("longbench:qasper", "gsm8k", "kv_retrieval"):
        task = made[name]
        parts = []
        for split in SPLITS:
            size = task.size(split)
            assert size
            parts += [take(task, plain, index, split=split).question for index in range(size)]
        whole = [take(task, plain, index).question for index in range(task.size(ALL) or 0)]
        assert sorted(parts) == sorted(whole) and len(set(parts)) == len(parts)


def test_worked_examples_come_from_the_training_file_and_are_not_asked(
    made: dict[str, Task], plain: PreTrainedTokenizerFast
) -> None:
    item = take(made["gsm8k"], plain)
    assert item.context.count("Q: ") == item.context.count("The answer is ") == 8
    assert "<<" not in item.context and "####" not in item.context
    assert item.question.removeprefix("Q: ").split("\n")[0] not in item.context
    assert item.stop == ("Q:",) and item.max_new_tokens == 256
    assert made["gsm8k"].score(f"so The answer is {item.references[0]}.", item) == 1
    (steps,) = item.reference_texts
    assert steps.startswith(" It is ") and steps.endswith(f"{item.references[0]}.\nThe answer is {item.references[0]}.")
    assert item.context.count(" It is ") == 8, "a likelihood is of what the examples show"
    assert made["gsm8k"].score(f"It is {item.references[0]}.", item) == 0
    assert made["gsm8k"].beside["gsm8k_flexible"](f"It is {item.references[0]}.", item) == 1
    solved = take(made["math"], plain)
    assert solved.reference_text.startswith(" It is $") and solved.references[0] in solved.reference_text
    assert solved.context.count("Problem:\n") == 4
    assert made["math"].score(rf"\boxed{{{solved.references[0]}}}", solved) == 1


def test_items_of_one_context_stay_together(tmp_path: Path, plain: PreTrainedTokenizerFast) -> None:
    rows = longbench_rows()
    for row in rows[:3]:
        row["context"] = rows[0]["context"]
    (tmp_path / "qasper.jsonl").write_text(lines(rows))
    (task,) = load_tasks(["longbench:qasper"], sources=Sources(data=(str(tmp_path),)))
    homes = {
        item.references: split
        for split in SPLITS
        for item in [take(task, plain, index, split=split) for index in range(task.size(split) or 0)]
    }
    assert len(homes) == 1 or homes
    documents = [take(task, plain, index).document for index in range(6)]
    assert sum(bool(document) for document in documents) == 3 and len({d for d in documents if d}) == 1
    groups = [take(task, plain, index).group for index in range(6)]
    assert all(document in ("", group) for document, group in zip(documents, groups, strict=True))
    assert len(set(groups)) == 4  # that of a sample which shares its context with none is its own


def test_a_sample_bears_the_same_group_at_every_length(made: dict[str, Task], plain: PreTrainedTokenizerFast) -> None:
    short, long = (
        {item.references: item for item in [take(made["longbench:qasper"], plain, index, length) for index in range(2)]}
        for length in (LONG, 2 * LONG)
    )
    assert short.keys() == long.keys()
    for references, item in short.items():
        assert item.group == long[references].group != "" and item.id != long[references].id


@pytest.mark.parametrize("tokenizer_name", ["plain", "with_bos", "chatty"])
def test_what_is_too_long_loses_its_middle_and_fits_exactly(
    tokenizer_name: str, made: dict[str, Task], request: pytest.FixtureRequest
) -> None:
    tokenizer: PreTrainedTokenizerFast = request.getfixturevalue(tokenizer_name)
    task = made["longbench:qasper"]
    whole = take(task, tokenizer)
    for length in (1200, 1355):
        item = take(task, tokenizer, length=length)
        prompt = render(tokenizer, item)
        assert length - 4 <= len(prompt.ids) + item.max_new_tokens <= length
        before = len(prompt.context_ids)
        behind = len(prompt.question_ids)
        assert item.context[:200] == whole.context[:200] and item.context[-20:] == whole.context[-20:]
        assert len(item.context) < len(whole.context) and before > behind
        assert task.usable(9, split=ALL, length=length, seed=0, tokenizer=tokenizer).cut == 6


def test_skip_long_leaves_out_what_does_not_fit_and_counts_it(tmp_path: Path, plain: PreTrainedTokenizerFast) -> None:
    rows = longbench_rows()
    for row in rows[::2]:
        row["context"] += " More about beds." * 200
    (tmp_path / "qasper.jsonl").write_text(lines(rows))
    sources = Sources(data=(str(tmp_path),), skip_long=True)
    (task,) = load_tasks(["longbench:qasper"], sources=sources)
    found = task.usable(20, split=ALL, length=2600, seed=0, tokenizer=plain)
    assert (found.items, found.too_long, found.cut) == (3, 3, 0)
    assert len({take(task, plain, index, length=2600).question for index in range(3)}) == 3
    with pytest.raises(TaskError, match=r"holds 3 items .* \(3 longer ones are left out\), so there is no item 3"):
        take(task, plain, 3, length=2600)


def test_without_a_rule_for_it_what_is_too_long_is_refused_by_line(
    made: dict[str, Task], plain: PreTrainedTokenizerFast
) -> None:
    with pytest.raises(TaskError, match=r"kv_retrieval: line \d of .*kv\.jsonl\.gz takes \d+ tokens .* --skip-long"):
        take(made["kv_retrieval"], plain, length=200)


def test_segments_say_where_documents_and_the_answer_are(made: dict[str, Task], plain: PreTrainedTokenizerFast) -> None:
    item = take(made["longbench:hotpotqa"], plain)
    parts = {segment.name: item.context[segment.start : segment.end] for segment in item.segments}
    assert parts["instruction"].startswith("Answer the question based on the given passages.")
    assert parts["first_document"].startswith("Passage 1:") and parts["last_document"].startswith("Passage 3:")
    assert parts["answer"] == "peonies"


def test_rendered_prompts_are_for_the_query_aware_regime_only(made: dict[str, Task]) -> None:
    assert made["mini_longbench:hotpotqa"].regimes == ("aware",)
    assert made["longbench:qasper"].regimes == ("agnostic", "aware")


def test_every_task_is_listed_with_what_it_measures() -> None:
    assert ABOUT.keys() == FAMILIES.keys()
    assert MEASURES.keys() == set(task_names())


@pytest.mark.parametrize(
    ("name", "rows", "sentence"),
    [
        (
            "longbench:qasper",
            [LB | {"answers": []}],
            r"line 1, answers is an empty list",
        ),
        (
            "longbench:qasper",
            [*longbench_rows()[:2], *longbench_rows("trec")],
            r"line 3, dataset is 'trec', but the first entry's is 'qasper', and a file holds one task",
        ),
        (
            "longbench:qasper",
            [LB, {"input": "?"}],
            "line 2, context is missing",
        ),
        ("longbench:trec", longbench_rows("trec"), r"line 1, all_classes is missing or empty"),
        (
            "gsm8k",
            [GSM, GSM | {"answer": "3"}],
            r"line 2, answer does not end in",
        ),
        ("gsm8k", [GSM], "1 problems are too few: 8 are worked examples"),
        ("longeval", [{"prompt": "no end", "expected_number": 3}], "prompt does not say where the record is over"),
        (
            "kv_retrieval",
            [{"ordered_kv_records": [["a", "b"]], "key": "c", "value": "b"}],
            "line 1, key 'c' with its value",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named_by_line_and_field(
    name: str, rows: list[dict[str, object]], sentence: str, tmp_path: Path, plain: PreTrainedTokenizerFast
) -> None:
    (tmp_path / f"{name.split(':')[-1]}.jsonl").write_text(lines(rows))
    (task,) = load_tasks([name], sources=Sources(data=(str(tmp_path),)))
    with pytest.raises(TaskError, match=sentence):
        take(task, plain)


def test_a_pair_of_text_and_question_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a_context.txt").write_text("text")
    with pytest.raises(TaskError, match=r"a_context\.txt and a\.md cannot be read together"):
        choose_tasks(["longbench_v2"], sources=Sources(data=(str(tmp_path),)))
    (tmp_path / "a.md").write_text("# Question\n\nWhy?\n\n# Choices\n\n- A: x\n\n# Answer\n\nA\n")
    with pytest.raises(TaskError, match=r"a\.md is not LongBench v2's form: it lacks # Choices"):
        choose_tasks(["longbench_v2"], sources=Sources(data=(str(tmp_path),)))


def test_gold_without_an_answer_is_refused(tmp_path: Path, plain: PreTrainedTokenizerFast) -> None:
    content = mini_file()
    content["1"]["gold"] = []
    (tmp_path / "MiniLongBench_hotpotqa.json").write_text(json.dumps(content))
    (task,) = load_tasks(["mini_longbench:hotpotqa"], sources=Sources(data=(str(tmp_path),)))
    with pytest.raises(TaskError, match=r'\["1"\]\.gold is empty'):
        take(task, plain)


def test_a_hub_data_set_is_read_in_the_same_forms(tmp_path: Path, plain: PreTrainedTokenizerFast) -> None:
    datasets = pytest.importorskip("datasets", reason="the package `datasets` (extra: datasets) is not installed")
    datasets.Dataset.from_list(longbench_rows()).to_parquet(tmp_path / "test-00000-of-00001.parquet")
    (task,) = load_tasks(["longbench:qasper"], sources=Sources(data=(f"hub:{tmp_path}",)))
    assert task.size(ALL) == 6
    assert "Passage 1:" in take(task, plain).context


def test_entries_that_repeat_another_count_once_and_are_counted(tmp_path: Path, plain: PreTrainedTokenizerFast) -> None:
    (tmp_path / "qasper.jsonl").write_text(lines(longbench_rows() + longbench_rows()[:2]))
    (task,) = load_tasks(["longbench:qasper"], sources=Sources(data=(str(tmp_path),)))
    found = task.usable(9, split=ALL, length=LONG, seed=0, tokenizer=plain)
    assert (found.items, found.repeated) == (6, 2)
    with pytest.raises(TaskError, match=r"holds 6 items .* `evaluate` takes what there is with --limit\.$"):
        take(task, plain, 6)


def test_whatever_a_data_set_fails_with_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: object, **__: object) -> None:
        raise Exception("An error occurred while generating the dataset") from ValueError("a damaged\nfile")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(TaskError, match=r"The data set FOLDER could not be loaded \(a damaged file\)"):
        choose_tasks(["gsm8k"], sources=Sources(data=("hub:FOLDER",)))


@pytest.mark.parametrize("name", ["test.jsonl.gz", "test.zip"])
def test_a_damaged_archive_is_one_sentence(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "test.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("test.jsonl", lines(longbench_rows(count=40)))
    (tmp_path / "test.jsonl.gz").write_bytes(gzip.compress(lines(longbench_rows(count=40)).encode()))
    raw = bytearray((tmp_path / name).read_bytes())
    raw[60:90] = b"\xff" * 30
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(TaskError, match=rf"The data file .*{name} cannot be read"):
        choose_tasks(["gsm8k"], sources=Sources(data=(str(tmp_path / name),)))


def test_tasks_without_an_end_say_which_splits_there_are(plain: PreTrainedTokenizerFast) -> None:
    (task,) = load_tasks(["needle:0"])
    with pytest.raises(UnknownNameError, match=r"known: search, test, validation\. Items that are made on"):
        take(task, plain)


def test_without_datasets_a_hub_data_set_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(TaskError, match=r"pip install 'cachecraft-kv\[datasets\]'"):
        choose_tasks(["longbench:qasper"], sources=Sources(data=("hub:someone/something",)))


def test_the_needle_stands_at_its_depth_and_its_value_is_the_answer(
    tmp_path: Path, plain: PreTrainedTokenizerFast
) -> None:
    sources = Sources((write_essay(tmp_path / "essay.txt"),))
    for task, depth in zip(load_tasks(["needle:0", "needle:70"], sources=sources), (0, 70), strict=True):
        item = take(task, plain, length=2000, split="test")
        (needle,) = (segment for segment in item.segments if segment.name == "needle")
        opening = item.segments[0].end
        place = (needle.start - opening) / (len(item.context) - opening - (needle.end - needle.start))
        assert abs(place - depth / 100) < 0.15
        assert task.score(f"It is {item.references[0]}.", item) == 1 and task.score("It is 1.", item) == 0
        assert 1900 < len(render(plain, item).ids) + item.max_new_tokens <= 2000


def test_real_files_make_items_of_every_benchmark(shared: Path, chatty: PreTrainedTokenizerFast) -> None:
    sizes = {"math": 496, "longeval": 50, "longbench_v2": 24, "mini_longbench:hotpotqa": 13}
    names = "math500.jsonl", "longeval_lines_200.jsonl", "longbench_v2", "minilongbench/MiniLongBench_hotpotqa.json"
    sources = Sources(data=tuple(str(shared / name) for name in names))
    for task in choose_tasks(list(sizes), sources=sources).tasks:
        assert task.size(ALL) == sizes[task.name]
    (math,) = choose_tasks(["math"], sources=sources).tasks
    assert take(math, chatty, length=40_000).references
