"""CodeXGLUE's line completion (arXiv 2102.04664): its tokens back to code, edit similarity of the next line."""

from __future__ import annotations

import re

from cachecraft.tasks.scoring.edit import percent

_LITERAL = re.compile(r"<(?:STR|NUM|CHAR)_LIT:(.*?)>", re.DOTALL)
_BARE = {"<NUM_LIT>": "0", "<STR_LIT>": "", "<CHAR_LIT>": ""}


def readable(tokens: str) -> str:
    """Code from the data set's tokens: line ends, and literals instead of their placeholders."""
    code = tokens.removeprefix("<s>").removesuffix("</s>").strip()
    for token, literal in _BARE.items():
        code = code.replace(token, literal)
    code = _LITERAL.sub(lambda found: found.group(1), code)
    return re.sub(r" *<EOL> ?", "\n", code)


def line_similarity(answer: str, reference: str) -> float:
    """Edit similarity, in whole per cent, of the reference and the answer's first line that is not blank."""
    line = next((line for line in answer.split("\n") if line.strip()), "")
    return percent(line.strip(), reference.strip()) / 100
