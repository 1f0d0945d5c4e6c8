"""What each family and task measures, where its data come from, under which licence: for `cachecraft tasks`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cachecraft.tasks.longbench_wording import LONGBENCH
from cachecraft.tasks.needle import DEPTHS


@dataclass(frozen=True)
class Family:
    """A family of tasks.

    Attributes:
        title: Its name and paper.
        data: What it reads.
        licence: Of the data, as their publishers say.
        regimes: What the split of its prompts allows.
        too_long: What is done with an item that is longer than the length.
    """

    title: str
    data: str
    licence: str
    regimes: str = "agnostic, aware"
    too_long: str = "refused, or left out with --skip-long"


_CUT = "cut out of the middle, or left out with --skip-long"

ABOUT: Mapping[str, Family] = MappingProxyType(
    {
        "ruler": Family(
            "RULER (arXiv 2404.06654)",
            "made up; essays from --essay or Python's own documentation; qa_1 and qa_2 from SQuAD and HotpotQA files",
            "Apache-2.0; SQuAD and HotpotQA CC BY-SA 4.0",
            too_long="made to fit",
        ),
        "longbench": Family(
            "LongBench (arXiv 2308.14508)", "its JSONL files, one a task (zai-org/LongBench)", "MIT", too_long=_CUT
        ),
        "mini_longbench": Family(
            "MiniLongBench (arXiv 2505.19959)", "its JSON files, one a task", "MIT", "aware", too_long=_CUT
        ),
        "longbench_v2": Family(
            "LongBench v2 (arXiv 2412.15204)",
            "its data.json (zai-org/LongBench-v2), or pairs NAME_context.txt and NAME.md",
            "MIT",
            too_long=_CUT,
        ),
        "gsm8k": Family("GSM8K (arXiv 2110.14168)", "its train.jsonl (examples) and test.jsonl (openai/gsm8k)", "MIT"),
        "math": Family(
            "MATH (arXiv 2103.03874)",
            "JSONL with problem, solution and answer (HuggingFaceH4/MATH-500)",
            "MIT; MATH-500 Apache-2.0",
        ),
        "needle": Family(
            "Needle in a haystack (Kamradt, 2023)",
            "made up; essays as RULER's",
            "PSF licence of the default essay",
            too_long="made to fit",
        ),
        "code": Family(
            "Code completion (LongBench; CodeXGLUE, arXiv 2102.04664)",
            "LongBench's lcc.jsonl and repobench-p.jsonl; CodeXGLUE's line completion, dev.json or its zip",
            "MIT",
            too_long="as LongBench; CodeXGLUE: cut off the start",
        ),
        "kv_retrieval": Family(
            "Key-value retrieval (Lost in the Middle, arXiv 2307.03172)", "its kv-retrieval-*_keys.jsonl.gz", "MIT"
        ),
        "longeval": Family("LongEval lines (LMSYS, 2023)", "its *_lines.jsonl", "Apache-2.0"),
    }
)

_RULER = {
    "niah_single_1": "recall of one sentence in noise",
    "niah_single_2": "recall of one sentence in prose",
    "niah_single_3": "copying a long value exactly",
    "niah_multikey_1": "recall among three distractors",
    "niah_multikey_2": "recall among distractors only",
    "niah_multikey_3": "the same with nothing to go by",
    "niah_multivalue": "finding all of several answers",
    "niah_multiquery": "several questions at once",
    "vt": "following a chain of assignments",
    "cwe": "counting words over the whole context",
    "fwe": "frequencies over the whole context",
    "qa_1": "single-hop reading among distractors",
    "qa_2": "two-hop reading among distractors",
}
_LONGBENCH = {name: wording.measures for name, wording in LONGBENCH.items()}

MEASURES: Mapping[str, str] = MappingProxyType(
    {
        **{f"ruler:{name}": about for name, about in _RULER.items()},
        **{f"longbench:{name}": about for name, about in _LONGBENCH.items()},
        **{f"mini_longbench:{name}": about for name, about in _LONGBENCH.items()},
        "longbench_v2": "choosing one of four answers to a question about long documents",
        "gsm8k": "arithmetic in words, after 8 worked examples: do the examples survive?",
        "math": "competition mathematics, after 4 worked examples",
        **{f"needle:{depth}": f"recall of one sentence {depth} % into prose" for depth in DEPTHS},
        "code:lcc": _LONGBENCH["lcc"],
        "code:repobench-p": _LONGBENCH["repobench-p"],
        "code:line_python": "the rest of a line of Python",
        "code:line_java": "the rest of a line of Java",
        "kv_retrieval": "the value of one key among 75 or more, all random",
        "longeval": "the number in one line among hundreds",
    }
)
"""What each task measures, by name."""
