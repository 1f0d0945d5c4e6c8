"""`cachecraft generate`: an answer over a compressed text, streamed, and then what it took."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cachecraft.errors import CacheCraftError
from cachecraft.terminal import err, one_sentence, say

if TYPE_CHECKING:
    from cachecraft.answering import Answered


def generate(
    question: Annotated[str, typer.Argument(help="What to ask; without --file it is the whole prompt.")],
    model: Annotated[str, typer.Option(help="smollm2 (built in), a hub id, a folder or a GGUF file.")] = "smollm2",
    policy: Annotated[str, typer.Option(help="NAME, NAME:key=value or FILE.py.")] = "keydiff",
    ratio: Annotated[float | None, typer.Option(help="Share to evict, in [0, 1).")] = None,
    keep: Annotated[int | None, typer.Option(help="Entries to keep per kv head, instead of a ratio.")] = None,
    file: Annotated[str | None, typer.Option(help="Text to ask about, compressed first; - for standard input.")] = None,
    selector: Annotated[
        str | None, typer.Option(help="Replaces the policy's own: tokens, chunks:20, pages:16.")
    ] = None,
    allocation: Annotated[
        str | None, typer.Option(help="uniform, pyramid, reversed_pyramid, adaptive, global or a budgets file.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="The most tokens of the answer.")] = 256,
    dtype: Annotated[str, typer.Option(help="float32, bfloat16, float16 or auto.")] = "auto",
    device: Annotated[str, typer.Option(help="cpu, cuda, … or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Try a model class that was not tested.")] = False,
) -> None:
    """Answer a question about a text whose cache is compressed first; then say bytes, seconds and tokens a second."""
    with one_sentence():
        if ratio is None and keep is None:
            raise CacheCraftError("How much stays? Give --ratio (share to evict, such as 0.75) or --keep (entries).")
        if max_new_tokens < 1:
            raise CacheCraftError(f"An answer of {max_new_tokens} tokens is none; let --max-new-tokens be at least 1.")
        if not question.strip():
            raise CacheCraftError("The question is empty; ask something.")
        text = None if file is None else read_text(file)

        from cachecraft.answering import answer  # which takes seconds, and a person may be typing the text
        from cachecraft.models import load
        from cachecraft.runtime.eviction import Budgeted

        # What can be refused is refused before a model is loaded.
        asked = Budgeted.of(policy, ratio, keep, selector, allocation)
        loaded = load(model, dtype=dtype, device=device, threads=threads, revision=revision, progress=say)
        try:
            answered = answer(loaded, question, text, _tell, asked, max_new_tokens=max_new_tokens, force=force)
            _tell("\n")
        except BrokenPipeError:  # whoever read the answer has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(0) from None
        for line in summary(answered, asked.policy.name):
            err.print(line, style="dim", markup=False, soft_wrap=True)


def read_text(file: str) -> str:
    """The text of a file, or of standard input for ``-``.

    Raises:
        CacheCraftError: It is missing, empty, not text, or cannot be read.
    """
    name = "Standard input" if file == "-" else file
    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).expanduser().read_bytes()
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise CacheCraftError(f"{name} is not UTF-8 text; give a text file.") from None
    except OSError as error:
        raise CacheCraftError(f"{name} cannot be read: {error.strerror}; check the path.") from None
    if "\0" in text:
        raise CacheCraftError(f"{name} is binary; give a text file.")
    if not text.strip():
        raise CacheCraftError(f"{name} is empty; give a text, or leave out --file to ask without one.")
    return text


def summary(answered: Answered, policy: str) -> list[str]:
    """What an answer took, in two lines, and what of the allocation had to give way, if anything had."""
    share = answered.kept_bytes / answered.full_bytes
    rate = "—" if answered.tokens_per_second is None else f"{answered.tokens_per_second:.1f}"
    return [
        f"{policy}, prompt of {answered.tokens} tokens: cache {_megabytes(answered.full_bytes)} before, "
        f"{_megabytes(answered.kept_bytes)} after ({100 * share:.0f} % kept)",
        f"first token after {answered.first_token_seconds:.2f} s, scoring {answered.scoring_seconds:.2f} s of it; "
        f"{answered.new_tokens} tokens, {rate} tokens a second",
        *([answered.note] if answered.note else []),
    ]


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e5 else f"{count / 1e3:.1f} kB"


def _tell(piece: str) -> None:
    """Pass on a piece of the answer at once, as it is."""
    sys.stdout.write(piece)
    sys.stdout.flush()
