"""LongBench's prompts, its limits and its metrics, task by task (Bai et al., 2023, arXiv 2308.14508; MIT licence).

The wording is the benchmark's, slips included, since it is part of what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Metric = Literal["f1", "f1_zh", "rouge", "rouge_zh", "classes", "retrieval", "count", "code"]


@dataclass(frozen=True)
class Wording:
    """One task.

    Attributes:
        before: What stands before the item's context.
        after: What follows it; ``{input}`` is the item's question.
        new_tokens: Limit of the answer.
        metric: Which of LongBench's metrics.
        measures: What it measures, for a list.
        first_line: Whether only the answer's first line counts.
        chat: Whether the model's chat template is used.
    """

    before: str
    after: str
    new_tokens: int
    metric: Metric
    measures: str
    first_line: bool = False
    chat: bool = True

    @property
    def chinese(self) -> bool:
        """Whether its metric needs Chinese words."""
        return self.metric in ("f1_zh", "rouge_zh")


_CONCISELY = (
    "Answer the question asconcisely as you can, using a single phrase if possible. Do not provide any explanation."
)
_ARTICLE = (
    "as concisely as you can, using a single phrase or sentence if possible. If the question cannot be answered based "
    'on the information in the article, write "unanswerable". If the question is a yes/no question, answer "yes", '
    '"no", or "unanswerable". Do not provide any explanation.'
)
_PASSAGES = (
    "Answer the question based on the given passages. Only give me the answer and do not output any other words.\n\n"
)


def _passages(measures: str) -> Wording:
    return Wording(
        f"{_PASSAGES}The following are given passages.\n",
        f"\n\n{_PASSAGES}Question: {{input}}\nAnswer:",
        32,
        "f1",
        measures,
    )


_CODE = "Please complete the code given below. \n"
_EXAMPLES = "The following are some examples.\n\n"

LONGBENCH: Mapping[str, Wording] = MappingProxyType(
    {
        "narrativeqa": Wording(
            "You are given a story, which can be either a novel or a movie script, and a question. "
            f"{_CONCISELY}\n\nStory: ",
            "\n\nNow, answer the question based on the story asconcisely as you can, using a single phrase if "
            "possible. Do not provide any explanation.\n\nQuestion: {input}\n\nAnswer:",
            128,
            "f1",
            "questions about a whole story or film script",
        ),
        "qasper": Wording(
            f"You are given a scientific article and a question. Answer the question {_ARTICLE}\n\nArticle: ",
            f"\n\n Answer the question based on the above article {_ARTICLE}\n\nQuestion: {{input}}\n\nAnswer:",
            128,
            "f1",
            "questions about a scientific article, some without an answer",
        ),
        "multifieldqa_en": Wording(
            "Read the following text and answer briefly.\n\n",
            "\n\nNow, answer the following question based on the above text, only give me the answer and do not output "
            "any other words.\n\nQuestion: {input}\nAnswer:",
            64,
            "f1",
            "questions about one document of any field",
        ),
        "multifieldqa_zh": Wording(
            "阅读以下文字并用中文简短回答：\n\n",
            "\n\n现在请基于上面的文章回答下面的问题，只告诉我答案，不要输出任何其他字词。\n\n问题：{input}\n回答：",
            64,
            "f1_zh",
            "the same in Chinese",
        ),
        "hotpotqa": _passages("two-hop questions over several passages"),
        "2wikimqa": _passages("up to five-hop questions over several passages"),
        "musique": _passages("up to four-hop questions over several passages, made hard to shortcut"),
        "dureader": Wording(
            "请基于给定的文章回答下述问题。\n\n文章：",
            "\n\n请基于上述文章回答下面的问题。\n\n问题：{input}\n回答：",
            128,
            "rouge_zh",
            "Chinese search questions over several pages",
        ),
        "gov_report": Wording(
            "You are given a report by a government agency. Write a one-page summary of the report.\n\nReport:\n",
            "\n\nNow, write a one-page summary of the report.\n\nSummary:",
            512,
            "rouge",
            "a summary of a long report",
        ),
        "qmsum": Wording(
            "You are given a meeting transcript and a query containing a question or instruction. Answer the query in "
            "one or more sentences.\n\nTranscript:\n",
            "\n\nNow, answer the query based on the above meeting transcript in one or more sentences.\n\n"
            "Query: {input}\nAnswer:",
            512,
            "rouge",
            "a summary of a meeting, as a query asks for it",
        ),
        "multi_news": Wording(
            "You are given several news passages. Write a one-page summary of all news. \n\nNews:\n",
            "\n\nNow, write a one-page summary of all the news.\n\nSummary:",
            512,
            "rouge",
            "one summary of several news articles",
        ),
        "vcsum": Wording(
            "下面有一段会议记录，请你阅读后，写一段总结，总结会议的内容。\n会议记录：\n",
            "\n\n会议总结：",
            512,
            "rouge_zh",
            "a summary of a Chinese meeting",
        ),
        "trec": Wording(
            "Please determine the type of the question below. Here are some examples of questions.\n\n",
            "\n{input}",
            64,
            "classes",
            "the type of a question, from many examples",
            first_line=True,
            chat=False,
        ),
        "triviaqa": Wording(
            "Answer the question based on the given passage. Only give me the answer and do not output any other "
            f"words. {_EXAMPLES}",
            "\n\n{input}",
            32,
            "f1",
            "questions about a passage, after worked examples",
            first_line=True,
            chat=False,
        ),
        "samsum": Wording(
            f"Summarize the dialogue into a few short sentences. {_EXAMPLES}",
            "\n\n{input}",
            128,
            "rouge",
            "a summary of a dialogue, after worked examples",
            first_line=True,
            chat=False,
        ),
        "lsht": Wording(
            "请判断给定新闻的类别，下面是一些例子。\n\n",
            "\n{input}",
            64,
            "classes",
            "the class of a Chinese news article, from many examples",
            first_line=True,
            chat=False,
        ),
        "passage_count": Wording(
            "There are some paragraphs below sourced from Wikipedia. Some of them may be duplicates. Please carefully "
            "read these paragraphs and determine how many unique paragraphs there are after removing duplicates. In "
            "other words, how many non-repeating paragraphs are there in total?\n\n",
            "\n\nPlease enter the final count of unique paragraphs after removing duplicates. The output format should "
            "only contain the number, such as 1, 2, 3, and so on.\n\nThe final answer is: ",
            32,
            "count",
            "how many different paragraphs there are",
        ),
        "passage_retrieval_en": Wording(
            "Here are 30 paragraphs from Wikipedia, along with an abstract. Please determine which paragraph the "
            "abstract is from.\n\n",
            "\n\nThe following is an abstract.\n\n{input}\n\nPlease enter the number of the paragraph that the "
            'abstract is from. The answer format must be like "Paragraph 1", "Paragraph 2", etc.\n\nThe answer is: ',
            32,
            "retrieval",
            "which of 30 paragraphs an abstract is of",
        ),
        "passage_retrieval_zh": Wording(
            "以下是若干段落文字，以及其中一个段落的摘要。请确定给定的摘要出自哪一段。\n\n",
            '\n\n下面是一个摘要\n\n{input}\n\n请输入摘要所属段落的编号。答案格式必须是"段落1"，"段落2"等格式\n\n答案是：',
            32,
            "retrieval",
            "the same in Chinese",
        ),
        "lcc": Wording(_CODE, "Next line of code:\n", 64, "code", "the next line of a file", chat=False),
        "repobench-p": Wording(
            _CODE,
            "{input}Next line of code:\n",
            64,
            "code",
            "the next line, given other files of its repository",
            chat=False,
        ),
    }
)
"""Every task of LongBench."""
