"""Replies of a model: what they may look like, and every way in which one is refused."""

from __future__ import annotations

import ast
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cachecraft.evolution.llm.faults import Fault, ReplyError
from cachecraft.evolution.llm.replies import read_reply

PARENT = '''"""Norms."""

from torch import Tensor

from cachecraft.policy.features import Features


def score_tokens(f: Features) -> Tensor:
    """Long keys."""
    length = f.keys.norm(dim=-1)
    other = f.values.norm(dim=-1)
    return length + other


def protect(f: Features) -> tuple[int, int]:
    """Sinks."""
    return 4, 8
'''


def block(search: str, replace: str) -> str:
    return f"<<<<<<< SEARCH\n{search}\n=======\n{replace}\n>>>>>>> REPLACE\n"


def fenced(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}\n```\n"


GOOD = block("    return length + other", "    return length - other")


def fault(text: str | None, **how: object) -> Fault:
    with pytest.raises(ReplyError) as caught:
        read_reply(text, PARENT, **how)  # type: ignore[arg-type]
    assert str(caught.value).endswith(".")
    return caught.value.fault


def test_a_block_changes_what_it_names_and_nothing_else() -> None:
    edit = read_reply(f"Idea: take the difference.\n\n{GOOD}", PARENT)
    assert edit.source == PARENT.replace("length + other", "length - other")
    assert (edit.form, edit.note) == ("blocks", "take the difference.")


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("\n", "\r\n"),
        GOOD.replace("other\n", "other   \t\n"),
        f"```python\n{GOOD}```",
        GOOD.replace("SEARCH\n", "SEARCH\n```python\n").replace("\n=======", "\n```\n======="),
        GOOD.replace("<<<<<<< SEARCH", "<<<<<<<SEARCH"),
        f"<think>Should I {block('x', 'y')}?</think>\n{GOOD}",
    ],
)
def test_line_ends_trailing_blanks_fences_and_thoughts_do_not_matter(text: str) -> None:
    assert read_reply(text, PARENT).source == PARENT.replace("length + other", "length - other")


def test_several_blocks_are_applied_in_order() -> None:
    text = GOOD + block("    return length - other", "    return 2 * length - other")
    assert "return 2 * length - other" in read_reply(text, PARENT).source


def test_a_whole_function_replaces_its_namesake_and_brings_its_imports() -> None:
    text = fenced("import torch\n\ndef score_tokens(f: Features) -> Tensor:\n    return torch.log(f.keys.norm(dim=-1))")
    edit = read_reply(text, PARENT)
    assert edit.form == "functions"
    assert "torch.log" in edit.source and "length + other" not in edit.source
    assert "return 4, 8" in edit.source
    assert edit.source.count("import torch\n") == 1
    ast.parse(edit.source)


def test_a_new_function_is_added_and_names_that_can_only_mean_one_thing_are_imported() -> None:
    text = fenced("def _gate(x: Tensor) -> Tensor:\n    return torch.sigmoid(x)")
    text += "and\n" + fenced("def score_tokens(f):\n    return _gate(f.keys.norm(dim=-1))", "py")
    source = read_reply(text, PARENT).source
    assert "def _gate" in source and "import torch\n" in source


def test_an_import_brings_only_names_that_are_not_bound_yet() -> None:
    text = fenced("from torch import Tensor, zeros_like\n\ndef score_tokens(f):\n    return zeros_like(f.keys[..., 0])")
    source = read_reply(text, PARENT).source
    assert "from torch import Tensor\n" in source and "from torch import zeros_like\n" in source


def test_a_function_without_a_fence_is_read_too() -> None:
    assert "f.values" not in read_reply("def score_tokens(f):\n    return f.keys.norm(dim=-1)", PARENT).source


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (None, Fault.EMPTY),
        ("", Fault.EMPTY),
        (" \r\n\t", Fault.EMPTY),
        ("<think>only thoughts</think>", Fault.EMPTY),
        ("<think>thoughts without an end", Fault.CUT_OFF),
        ("I'm sorry, but I can't help with that.", Fault.REFUSAL),
        ("The norm of the keys matters most.", Fault.NO_EDIT),
        ("```bash\nls\n```", Fault.NO_EDIT),
        ("```python\n# nothing\n```", Fault.NO_EDIT),
        (GOOD[:40], Fault.CUT_OFF),
        ("```python\ndef score_tokens(f):\n    return f.keys", Fault.CUT_OFF),
        (GOOD.replace("=======\n", ""), Fault.MALFORMED),
        ("<<<<<<< SEARCH\na\n" + GOOD, Fault.MALFORMED),
        (">>>>>>> REPLACE\n", Fault.MALFORMED),
        ("```python\nprint('hello')\n```", Fault.MALFORMED),
        ("```python\nclass A:\n    pass\n```", Fault.MALFORMED),
        (block("    return width", "    return 1"), Fault.NO_MATCH),
        (block("return length + other", "return 1"), Fault.NO_MATCH),  # other indentation
        (block("", "    return 1"), Fault.NO_MATCH),
        (block("from", "x") + GOOD, Fault.NO_MATCH),
        ("```python\ndef score_tokens(f)\n    return f\n```", Fault.SYNTAX),
        (fenced("def score_tokens(f):\n    return 1") + fenced("def score_tokens(f):\n    return 2"), Fault.AMBIGUOUS),
    ],
)
def test_a_reply_that_is_not_unmistakable_is_refused_by_kind(text: str | None, kind: Fault) -> None:
    assert fault(text) is kind


def test_a_search_that_is_there_twice_is_refused() -> None:
    twice = PARENT + "\n\ndef _more(f: Features) -> Tensor:\n    return length + other\n"
    with pytest.raises(ReplyError) as caught:
        read_reply(block("    return length + other", "    return 1"), twice)
    assert caught.value.fault is Fault.DOUBLE_MATCH and "2 times" in str(caught.value)


def test_what_the_endpoint_says_of_a_reply_counts() -> None:
    assert fault(GOOD, finish="length") is Fault.CUT_OFF  # a later block may be missing
    assert fault(GOOD, finish="content_filter") is Fault.REFUSAL
    assert fault(GOOD, refused=True) is Fault.REFUSAL


def test_only_what_can_be_mended_is_asked_for_again() -> None:
    assert not ReplyError(Fault.EMPTY, "").mendable
    assert not ReplyError(Fault.REFUSAL, "").mendable
    assert ReplyError(Fault.NO_MATCH, "").mendable


MARKS = ("<<<<<<< SEARCH", "=======", ">>>>>>> REPLACE", "```python", "```")
PIECES = st.sampled_from([*MARKS, "    return length + other", "def f(x):", "a", "", "\r"])


@settings(max_examples=50, deadline=None)
@given(st.lists(PIECES, max_size=12))
def test_no_reply_whatever_ends_in_anything_but_an_edit_or_a_kind(pieces: list[str]) -> None:
    with suppress(ReplyError):
        assert read_reply("\n".join(pieces), PARENT).form in ("blocks", "functions")
