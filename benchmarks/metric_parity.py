"""How far CacheCraft's metrics agree with the published ones, on generated and hand-made cases.

Where a benchmark computes its metric with a package, that package itself is called: `rouge` (summaries), `fuzzywuzzy`
and `rapidfuzz` (code), `jieba` (Chinese words). The rest of each definition is written here a second time, in another
way than in the package. Needs `pip install rouge fuzzywuzzy rapidfuzz jieba`; runs for a minute or two. Exits with 1 if
a metric disagrees beyond what docs/tasks.md lists.
"""

from __future__ import annotations

import argparse
import difflib
import re
import string
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from cachecraft.tasks.metrics import string_match_all, string_match_part
from cachecraft.tasks.scoring import code_lines, final_answers, longbench
from cachecraft.tasks.scoring.edit import percent

_WORDS = "the a an cat dog Sat. on mat, red blue house's garden Paragraph answer is yes no 7 12 x=1 1,234"
WORDS = tuple(_WORDS.split())
CHINESE = "今天天气很好。北京是中国的首都，我们在公园里看到许多花！第5段落说明问题"
CLASSES = ("Date", "Food", "Other food", "Place", "Other place", "Speed", "Person")
SAME = 1e-9


@dataclass(frozen=True)
class Row:
    """One metric's agreement: name, what it was compared with, cases, equal ones, the largest difference."""

    metric: str
    beside: str
    cases: int
    equal: int
    largest: float
    allowed: bool = False


def text(rng: Random, most: int = 30) -> str:
    """Words, full stops, line breaks and spaces as models write them."""
    pieces = [rng.choice(WORDS) for _ in range(rng.randrange(most))]
    return "".join(piece + rng.choice([" ", " ", " ", ". ", ".", "\n", "  "]) for piece in pieces)


def edited(rng: Random, original: str) -> str:
    """A text like another: characters left out, doubled and changed."""
    out = []
    for character in original:
        roll = rng.random()
        out.append("" if roll < 0.05 else character * 2 if roll < 0.1 else "z" if roll < 0.15 else character)
    return "".join(out)


def compared(
    metric: str,
    beside: str,
    ours: Callable[..., float],
    theirs: Callable[..., float],
    cases: Sequence[tuple[Any, ...]],
    *,
    allowed: bool = False,
) -> Row:
    gaps = [abs(ours(*case) - theirs(*case)) for case in cases]
    return Row(metric, beside, len(gaps), sum(gap <= SAME for gap in gaps), max(gaps), allowed)


def plain_f1(own: Sequence[str], wanted: Sequence[str]) -> float:
    left, same = list(wanted), 0
    for word in own:
        if word in left:
            left.remove(word)
            same += 1
    return 0.0 if not same else 2 * same / (len(own) + len(wanted))


def words_of(answer: str) -> list[str]:
    bare = answer.lower().translate(str.maketrans("", "", string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def summaries(rng: Random, count: int) -> list[Row]:
    from rouge import Rouge

    scorer = Rouge()

    def theirs(answer: str, reference: str) -> float:
        try:
            return float(scorer.get_scores([answer], [reference], avg=True)["rouge-l"]["f"])
        except ValueError:  # the benchmark counts what the package refuses as 0
            return 0.0

    pairs = [(text(rng), text(rng)) for _ in range(count)]
    pairs += [("", "a"), ("a", ""), (".", "a"), ("a. ", "a"), ("a b. c d", "c d. a b"), ("a a a", "a"), ("A", "a")]
    return [compared("rouge_l", "rouge 1.0.1", longbench.rouge, theirs, pairs)]


def chinese(rng: Random, count: int) -> list[Row]:
    import jieba

    marks = set(string.punctuation) | set(CHINESE_MARKS)

    def theirs(answer: str, reference: str) -> float:
        sides = []
        for side in (answer.lower(), reference.lower()):
            bare = ("".join(c for c in word if c not in marks).strip() for word in jieba.cut(side, cut_all=False))
            sides.append([word for word in bare if word])
        return plain_f1(*sides)

    def some() -> str:
        return "".join(rng.choice(CHINESE) for _ in range(rng.randrange(25)))

    pairs = [(some(), some()) for _ in range(count)] + [("", "好"), ("《花》", "花"), ("ABC 好", "abc好")]
    return [compared("qa_f1_zh", "jieba 0.42.1, definition", longbench.qa_f1_chinese, theirs, pairs)]


CHINESE_MARKS = (
    "！？｡。＂＃＄％＆＇（）＊＋，－／：；＜＝＞＠［＼］＾＿｀｛｜｝～｟｠｢｣､、〃"
    "》「」『』【】〔〕〖〗〘〙〚〛〜〝〞〟〰〾〿–—‘’‛“”„‟…‧﹏"
)


def code(rng: Random, count: int) -> list[Row]:
    from fuzzywuzzy import fuzz as fuzzy
    from rapidfuzz import fuzz

    lines = [text(rng, 12).replace("\n", " ") for _ in range(count)]
    pairs = [(edited(rng, line), line) for line in lines] + [("", ""), ("", "x"), ("x", "x"), ("ab", "ba"), ("é", "e")]

    def first(answer: str) -> str:
        kept = [line for line in answer.lstrip("\n").split("\n") if not re.search(r"`|#|//", line)]
        return kept[0] if kept else ""

    marked = [(rng.choice(["\n", "# a\n", "```\n", "// b\n", ""]) + answer, line) for answer, line in pairs]

    def by_difflib(answer: str, reference: str) -> float:
        return round(100 * difflib.SequenceMatcher(None, answer, reference).ratio()) / 100

    def by_rapidfuzz(answer: str, reference: str) -> float:
        return round(fuzz.ratio(answer, reference)) / 100

    def by_fuzzywuzzy(answer: str, reference: str) -> float:
        return float(fuzzy.ratio(first(answer), reference)) / 100

    def ratio(answer: str, reference: str) -> float:
        return percent(answer, reference) / 100

    alone = "fuzzywuzzy without python-Levenshtein (difflib)"
    return [
        compared("edit ratio", "rapidfuzz 3.14.6", ratio, by_rapidfuzz, pairs),
        compared("code_similarity", "fuzzywuzzy 0.18.0", longbench.code_similarity, by_fuzzywuzzy, marked),
        compared("code_similarity", alone, ratio, by_difflib, pairs, allowed=True),
        compared("line_similarity", "rapidfuzz 3.14.6", code_lines.line_similarity, _line_by_rapidfuzz, pairs),
    ]


def _line_by_rapidfuzz(answer: str, reference: str) -> float:
    from rapidfuzz import fuzz

    filled = [line.strip() for line in answer.splitlines() if line.strip()]
    return round(fuzz.ratio(filled[0] if filled else "", reference.strip())) / 100


def words_and_numbers(rng: Random, count: int) -> list[Row]:
    pairs = [(text(rng, 12), text(rng, 6)) for _ in range(count)]
    pairs += [("", ""), ("The", "the"), ("a-b", "ab"), ("it's", "its"), ("Yes.", "yes")]
    numbers = [(text(rng, 10), str(rng.choice([7, 12, 1, 234]))) for _ in range(count)]
    paragraphs = [(answer, f"Paragraph {number}") for answer, number in numbers]
    classes = [(" ".join(rng.choices(CLASSES, k=rng.randrange(4))), rng.choice(CLASSES)) for _ in range(count)]

    def share(answer: str, number: str) -> float:
        found = [match.group() for match in re.finditer(r"\d+", answer)]
        return sum(each == number for each in found) / len(found) if found else 0.0

    def slips(answer: str, right: str) -> float:
        """As published: the list is gone through while names are taken out of it."""
        found = [name for name in CLASSES if name in answer]
        place = 0
        while place < len(found):
            if found[place] in right and found[place] != right:
                del found[place]
            place += 1
        return 1 / len(found) if right in found else 0.0

    nested = [("a b c", "a b c", ("a", "b", "c", "a b c"))]

    def classes_of_all(answer: str, right: str) -> float:
        return longbench.classification(answer, right, CLASSES)

    def any_of(answer: str, right: str) -> float:
        return float(right.lower() in answer.lower())

    def with_cat(answer: str, right: str) -> float:
        return (any_of(answer, right) + any_of(answer, "cat")) / 2

    half = "the same, which says 0.5"
    return [
        compared("qa_f1", "definition", longbench.qa_f1, lambda a, b: plain_f1(words_of(a), words_of(b)), pairs),
        compared("count", "definition", longbench.count, share, numbers),
        compared("retrieval", "definition", longbench.retrieval, lambda a, b: share(a, b.split()[1]), paragraphs),
        compared("classification", "definition, its slip included", classes_of_all, slips, classes),
        compared("classification, nested names", half, longbench.classification, lambda *_: 0.5, nested, allowed=True),
        compared("contains_any", "definition", lambda a, b: string_match_part(a, [b]), any_of, numbers),
        compared("contains_all", "definition", lambda a, b: string_match_all(a, [b, "cat"]), with_cat, numbers),
    ]


def solutions(rng: Random, count: int) -> list[Row]:
    numbers = [f"{rng.choice(['', '-'])}{rng.randrange(20000)}" for _ in range(count)]
    frames = ["so the answer is {}.", "The answer is ${}", "The answer is {} apples. Q: 3"]
    frames += ["it is {}", "The answer is  {}.00", "{} then 4"]
    worked = [
        (rng.choice(frames).format(_written(rng, number)), rng.choice([number, number, "5"])) for number in numbers
    ]

    def strict(answer: str, right: str) -> float:
        found = re.search(r"[Tt]he answer is\s*(-?\$?[0-9.,]+)", answer)
        return float(found is not None and _bare(found.group(1)) == right)

    def flexible(answer: str, right: str) -> float:
        found = re.findall(r"-?\$?[0-9][0-9.,]*", answer)
        return float(bool(found) and _bare(found[-1]) == right)

    sayings = ["The correct answer is ({})", "**The correct answer is {}**", "({})", "the correct answer is {}"]
    letters = [(rng.choice(sayings).format(rng.choice("ABCDE")), rng.choice("ABCD")) for _ in range(count)]

    def letter(answer: str, right: str) -> float:
        bare = answer.replace("*", "")
        return float(f"The correct answer is ({right})" in bare or f"The correct answer is {right}" in bare)

    last = [(text(rng, 8), str(rng.choice([7, 12, 1, 234]))) for _ in range(count)]

    def last_of(answer: str, right: str) -> float:
        digits = re.sub(r"\D+", " ", answer).split()
        return float(bool(digits) and int(digits[-1]) == int(right))

    return [
        compared("gsm8k_strict", "definition", final_answers.gsm8k_strict, strict, worked),
        compared("gsm8k_flexible", "definition", final_answers.gsm8k_flexible, flexible, worked),
        compared("choice", "definition", final_answers.choice, letter, letters),
        compared("last_number", "definition", final_answers.last_number, last_of, last),
    ]


def _written(rng: Random, number: str) -> str:
    return f"{int(number):,}" if rng.random() < 0.3 else number


def _bare(found: str) -> str:
    bare = found.replace(",", "").replace("$", "").rstrip(".")
    return bare[:-3] if bare.endswith(".00") else bare


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=300, help="generated cases for each metric (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (default: %(default)s)")
    options = parser.parse_args()
    rng = Random(options.seed)
    rows = [
        row for part in (words_and_numbers, summaries, chinese, code, solutions) for row in part(rng, options.cases)
    ]
    print("| metric | beside | cases | equal | largest difference |\n|---|---|---:|---:|---:|")
    for row in rows:
        note = " (known, see docs/tasks.md)" if row.allowed and row.equal < row.cases else ""
        print(f"| {row.metric} | {row.beside} | {row.cases} | {row.equal} | {row.largest:.3g}{note} |")
    wrong = [row for row in rows if row.equal < row.cases and not row.allowed]
    if wrong:
        print(f"\n{', '.join(row.metric for row in wrong)} disagree.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
