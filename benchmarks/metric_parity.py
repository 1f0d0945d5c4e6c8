"""How far CacheCraft's metrics agree with the published ones, on generated and hand-made cases.

Where a benchmark computes its metric with a package, that package itself is called: `rouge` (summaries), `fuzzywuzzy`
and `rapidfuzz` (code), `jieba` (Chinese words). The rest of each definition is written here a second time, in another
way than in the package. Needs `pip install rouge fuzzywuzzy python-Levenshtein rapidfuzz jieba`; runs for a minute or
two, and writes results.json. Exits with 1 if a metric disagrees beyond what docs/tasks.md lists.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import re
import string
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from bench_report import BenchReport

from cachecraft.tasks.metrics import string_match_all, string_match_part
from cachecraft.tasks.scoring import code_lines, final_answers, longbench
from cachecraft.tasks.scoring.edit import percent
from cachecraft.tasks.scoring.rouge import rouge_1

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
    pairs = [(text(rng), text(rng)) for _ in range(count)]
    pairs += [("", "a"), ("a", ""), (".", "a"), ("a. ", "a"), ("a b. c d", "c d. a b"), ("a a a", "a"), ("A", "a")]
    recall, f = rouge_package("rouge-1", "r"), rouge_package("rouge-1", "f")
    return [
        compared("rouge_l", "rouge 1.0.1", longbench.rouge, rouge_package(), pairs),
        compared("rouge_1 recall", "rouge 1.0.1", lambda a, b: rouge_1(a, b).recall, recall, pairs),
        compared("rouge_1 F", "rouge 1.0.1", lambda a, b: rouge_1(a, b).f, f, pairs),
    ]


def rouge_package(kind: str = "rouge-l", part: str = "f") -> Callable[[str, str], float]:
    from rouge import Rouge

    scorer = Rouge()

    def score(answer: str, reference: str) -> float:
        try:
            return float(scorer.get_scores([answer], [reference], avg=True)[kind][part])
        except ValueError:  # the benchmark counts what the package refuses as 0
            return 0.0

    return score


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
    package = rouge_package()

    def summary(answer: str, reference: str) -> float:
        return package(*(" ".join(jieba.cut(side, cut_all=False)) for side in (answer, reference)))

    return [
        compared("qa_f1_zh", "jieba 0.42.1, definition", longbench.qa_f1_chinese, theirs, pairs),
        compared("rouge_l_zh", "jieba 0.42.1, rouge 1.0.1", longbench.rouge_chinese, summary, pairs),
    ]


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

    harness = "lm-evaluation-harness's patterns"
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
        compared("gsm8k_strict", harness, final_answers.gsm8k_strict, harness_strict, worked, allowed=True),
        compared("gsm8k_flexible", harness, final_answers.gsm8k_flexible, harness_flexible, worked, allowed=True),
        compared("choice", "definition", final_answers.choice, letter, letters),
        compared("last_number", "definition", final_answers.last_number, last_of, last),
    ]


def _written(rng: Random, number: str) -> str:
    return f"{int(number):,}" if rng.random() < 0.3 else number


def harness_strict(answer: str, right: str) -> float:
    """As published: one character must follow the number, and only a final full stop is taken off it."""
    found = re.findall(r"The answer is (\-?[0-9\.\,]+).", answer)
    return float(bool(found) and _harness_plain(found[0]) == _harness_plain(right))


def harness_flexible(answer: str, right: str) -> float:
    found = [first or second for first, second in re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", answer)]
    return float(bool(found) and _harness_plain(found[-1]) == _harness_plain(right))


def _harness_plain(number: str) -> str:
    for pattern in (",", r"\$", r"(?s).*#### ", r"\.$"):
        number = re.sub(pattern, "", number)
    return number.lower()


def formulas(rng: Random, count: int) -> list[Row]:
    pairs = [(_solution(rng, *_written_twice(rng)), _written_twice(rng)[0]) for _ in range(count)]
    for _ in range(count):
        ours, other = _written_twice(rng)
        pairs.append((_solution(rng, other, other), ours))
    pairs += HAND_MADE

    def theirs(answer: str, right: str) -> float:
        found = _last_formula(answer)
        return float(found is not None and _symbols(found) == _symbols(right))

    return [compared("math", "definition", final_answers.math_match, theirs, pairs)]


HAND_MADE = [
    (r"\boxed{\frac{1}{2}}", "1/2"),
    (r"\boxed{\frac12}", r"\dfrac{1}{2}"),
    (r"\boxed{0.5}", r"\frac{1}{2}"),
    (r"\boxed{.5}", "0.5"),
    (r"\boxed{5.0}", "5"),
    (r"\boxed{x=5}", "5"),
    (r"\boxed{1,234}", "1234"),
    (r"\boxed{1,23}", "123"),
    (r"\boxed{\text{east}}", "east"),
    (r"\boxed{90^\circ}", "90"),
    (r"\boxed{50\%}", "50"),
    (r"\boxed{\$7}", "7"),
    (r"\boxed{\left( 1, 2 \right)}", "(1,2)"),
    (r"\boxed{\sqrt2}", r"\sqrt{2}"),
    (r"\boxed{1} then \boxed{2}", "2"),
    (r"\fbox{3}", "3"),
    (r"\boxed{\frac{1}{2", r"\frac{1}{2}"),
    ("The final answer is: $7$.", "7"),
    ("the answer is 3. No, the answer is 4.", "4"),
    ("7", "7"),
    ("", "7"),
]


def _written_twice(rng: Random) -> tuple[str, str]:
    """A formula in two ways of writing that mean the same."""
    a, b = rng.randrange(1, 99), rng.randrange(2, 99)
    big = rng.randrange(1000, 99999)
    return rng.choice(
        [
            (f"\\frac{{{a}}}{{{b}}}", f"\\{rng.choice('dt')}frac{{{a}}}{{{b}}}"),
            (f"\\frac{{{a}}}{{{b}}}", f"{a}/{b}"),
            (str(a), f"{a}.0"),
            (str(a), f"x = {a}"),
            (str(big), f"{big:,}"),
            (f"0.{a}", f".{a}"),
            (f"({a},{b})", f"\\left({a}, \\!{b}\\right)"),
            (str(a), f"{a}^\\circ"),
            (str(a), f"{a}\\%"),
            (str(big), f"\\$ {big}"),
            (f"\\sqrt{{{a % 10}}}", f"\\sqrt{a % 10}"),
            (f"{a}\\sqrt{{{b}}}", f"{a} \\sqrt{{{b}}}"),
            ("even", "\\text{even}"),
            (str(a), f"${a}$"),
        ]
    )


def _solution(rng: Random, first: str, second: str) -> str:
    frames = ["So \\boxed{{{}}}.", "\\boxed{{9}}, no: $\\boxed{{{}}}$"]
    frames += ["The answer is {}.", "final answer is: {}", "It is {}."]
    return rng.choice(frames).format(rng.choice([first, second]))


def _last_formula(answer: str) -> str | None:
    """What the last box holds, found by reading its braces; else what follows "answer is" on the last line with it."""
    opened = list(re.finditer(r"\\(?:boxed|fbox)\{", answer))
    if opened:
        held, depth = "", 1
        for symbol in answer[opened[-1].end() :]:
            depth += (symbol == "{") - (symbol == "}")
            if not depth:
                return held
            held += symbol
        return None
    said = [line for line in answer.split("\n") if "answer is" in line.lower()]
    if not said:
        return None
    # The first "answer is" of a line takes the rest of it.
    return re.split(r"(?i)answer is:?", said[-1], maxsplit=1)[1].strip().rstrip(".").strip()


SPACES = {"\\,", "\\!", "\\;", "\\:", "\\ ", "\\quad", "\\qquad", "~", " ", "\n"}
DROPPED = SPACES | {"\\left", "\\right", "\\$", "\\%", "%"}


def _symbols(formula: str) -> str:
    """One way of writing, symbol by symbol."""
    symbols = re.findall(r"\\[A-Za-z]+|\\.|.", formula.strip().rstrip(".").strip("$"), re.DOTALL)
    symbols = [re.sub(r"^\\[dtc]frac$", r"\\frac", each) for each in symbols if each not in DROPPED]
    text = re.sub(r"\^(?:\\circ|\{\\circ\})|\\degree", "", "".join(symbols))
    text = re.sub(r"\\(?:text|mathrm|mathbf|textbf|mbox)\{([^{}]*)\}", r"\1", text)
    head, equals, tail = text.partition("=")
    text = tail if equals and re.fullmatch(r"[A-Za-z]\w?(?:\(\w\))?", head) else text
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\sqrt(\w)", r"\\sqrt{\1}", text)
    if whole := re.fullmatch(r"(-?)(\d+)/(\d+)", text):
        text = f"{whole[1]}\\frac{{{whole[2]}}}{{{whole[3]}}}"
    while (fewer := re.sub(r"(\d),(\d{3})(?!\d)", r"\1\2", text)) != text:
        text = fewer
    text = re.sub(r"(?<!\d)\.(?=\d)", "0.", text)
    return text.split(".")[0] if re.fullmatch(r"-?\d+\.0+", text) else text


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
        row
        for part in (words_and_numbers, summaries, chinese, code, solutions, formulas)
        for row in part(rng, options.cases)
    ]
    report = BenchReport("metric-parity", vars(options))
    report.keep("rows", [dataclasses.asdict(row) for row in rows])
    print("| metric | beside | cases | equal | largest difference |\n|---|---|---:|---:|---:|")
    for row in rows:
        note = " (known, see docs/tasks.md)" if row.allowed and row.equal < row.cases else ""
        print(f"| {row.metric} | {row.beside} | {row.cases} | {row.equal} | {row.largest:.3g}{note} |")
    wrong = [row for row in rows if row.equal < row.cases and not row.allowed]
    if wrong:
        print(f"\n{', '.join(row.metric for row in wrong)} disagree.")
    report.close()
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
