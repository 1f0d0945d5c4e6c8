"""String matches: shares of references, case put aside, and nothing to match refused."""

from __future__ import annotations

import pytest

from cachecraft.errors import TaskError
from cachecraft.tasks import string_match_all, string_match_part


def test_all_gives_the_share_of_references_found() -> None:
    assert string_match_all("ABC and def", ["abc", "DEF", "ghi", "xyz"]) == 0.5
    assert string_match_all("1234567.", ["1234567"]) == 1.0
    assert string_match_all("", ["1"]) == 0.0


def test_part_gives_one_for_any_reference() -> None:
    assert string_match_part("It was Paris.", ["London", "paris"]) == 1.0
    assert string_match_part("It was Rome.", ["London", "paris"]) == 0.0


@pytest.mark.parametrize("references", [[], [""], ["a", ""]])
def test_nothing_to_match_is_refused_instead_of_counted(references: list[str]) -> None:
    for metric in (string_match_all, string_match_part):
        with pytest.raises(TaskError, match="cannot be scored"):
            metric("answer", references)
