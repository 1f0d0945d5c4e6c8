"""From a model's reply to a program: SEARCH/REPLACE blocks or whole functions, read strictly.

A reply that does not say unmistakably what to change is refused with its kind and a sentence that the model is told;
nothing is guessed and nothing is merged half. What the program may contain is the checker's business.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass

from cachecraft.evolution.llm.faults import Fault, ReplyError
from cachecraft.evolution.proposers.vocabulary import IMPORTS

LONGEST = 200_000  # characters of a reply that are looked at all

_SEARCH = re.compile(r"<{5,9} ?SEARCH")
_MIDDLE = re.compile(r"={5,9}")
_REPLACE = re.compile(r">{5,9} ?REPLACE")
_FENCE = re.compile(r"(`{3,}|~{3,})\s*([\w+-]*)[^`]*")
_REFUSALS = re.compile(r"\b(I('m| am) sorry|I (cannot|can't|can not|won't|am unable)|as an AI\b)", re.IGNORECASE)


@dataclass(frozen=True)
class Edit:
    """A reply, read.

    Attributes:
        source: The parent with the edit applied.
        form: ``"blocks"`` or ``"functions"``.
        note: What the model says it did, one line; "" if nothing.
    """

    source: str
    form: str
    note: str


def read_reply(text: str | None, parent: str, *, finish: str = "stop", refused: bool = False) -> Edit:
    """Apply a reply to the program that it was asked to change.

    Args:
        text: The reply's text.
        parent: The program.
        finish: Why the model stopped, as the endpoint says: ``"length"`` is a reply that was cut off.
        refused: The endpoint itself marks the reply as a refusal.

    Returns:
        The changed program, with plain line ends; it may still not parse.

    Raises:
        ReplyError: The reply is not used, with its kind.
    """
    if refused or finish == "content_filter":
        raise ReplyError(Fault.REFUSAL, "The reply was a refusal.")
    body = _spoken((text or "")[:LONGEST], finish)
    if not body.strip():
        raise ReplyError(Fault.EMPTY, "The reply was empty.")
    lines = [line.rstrip() for line in body.split("\n")]
    blocks, rest, opened = _blocks(lines)
    if finish == "length" or opened:
        raise ReplyError(Fault.CUT_OFF, "The reply ended before it was complete; answer shorter, with the edit only.")
    if blocks:
        return Edit(_applied(parent, blocks), "blocks", _note(rest))
    codes = _fences(lines)
    if not codes:
        if _REFUSALS.search(body[:400]):
            raise ReplyError(Fault.REFUSAL, "The reply was a refusal.")
        if any(line.startswith("def score_tokens(") for line in lines):
            codes = [body]
        else:
            raise ReplyError(
                Fault.NO_EDIT, "The reply holds no edit; give SEARCH/REPLACE blocks or whole functions in a fence."
            )
    return Edit(_replaced(parent, codes), "functions", _note(lines))


def _spoken(text: str, finish: str) -> str:
    """The reply without what a reasoning model thinks aloud, with plain line ends."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    text = re.sub(r"<think(?:ing)?>.*?</think(?:ing)?>", "", text, flags=re.DOTALL)
    if re.search(r"<think(?:ing)?>", text):
        raise ReplyError(Fault.CUT_OFF, "The reply ended while thinking; answer shorter, with the edit only.")
    return text


def _blocks(lines: Sequence[str]) -> tuple[list[tuple[list[str], list[str]]], list[str], bool]:
    """SEARCH and REPLACE parts in order, the lines outside them, and whether the last block is open."""
    found: list[tuple[list[str], list[str]]] = []
    outside: list[str] = []
    search: list[str] | None = None
    replace: list[str] | None = None
    for line in lines:
        mark = line.strip()
        if _SEARCH.fullmatch(mark):
            if search is not None:
                raise ReplyError(Fault.MALFORMED, "A SEARCH begins inside another; close each with >>>>>>> REPLACE.")
            search, replace = [], None
        elif search is not None and replace is None and _MIDDLE.fullmatch(mark):
            replace = []
        elif _REPLACE.fullmatch(mark):
            if search is None or replace is None:
                raise ReplyError(
                    Fault.MALFORMED,
                    "A block is <<<<<<< SEARCH, the old lines, =======, the new lines, >>>>>>> REPLACE, in order.",
                )
            found.append((search, replace))
            search = replace = None
        elif search is not None:
            (search if replace is None else replace).append(line)
        else:
            outside.append(line)
    return found, outside, search is not None


def _applied(parent: str, blocks: Sequence[tuple[list[str], list[str]]]) -> str:
    lines = [line.rstrip() for line in parent.replace("\r\n", "\n").split("\n")]
    for search, replace in blocks:
        wanted = _trimmed(search)
        if not wanted:
            raise ReplyError(Fault.NO_MATCH, "A SEARCH part is empty; copy the lines to be replaced into it.")
        size = len(wanted)
        places = [first for first in range(len(lines) - size + 1) if lines[first : first + size] == wanted]
        if len(places) != 1:
            fault, what = (Fault.NO_MATCH, "not there") if not places else (Fault.DOUBLE_MATCH, f"{len(places)} times")
            advice = "copy the lines exactly" if not places else "take more lines so that it is there once"
            raise ReplyError(fault, f"The program has the SEARCH part beginning {wanted[0]!r} {what}; {advice}.")
        lines[places[0] : places[0] + size] = _trimmed(replace)
    return "\n".join(lines)


def _trimmed(lines: Sequence[str]) -> list[str]:
    """Without empty lines and fence lines at either end."""
    kept = list(lines)
    while kept and (not kept[0] or _FENCE.fullmatch(kept[0].strip())):
        kept.pop(0)
    while kept and (not kept[-1] or _FENCE.fullmatch(kept[-1].strip())):
        kept.pop()
    return kept


def _fences(lines: Sequence[str]) -> list[str]:
    """What stands in fences that are, or may be, Python."""
    found: list[str] = []
    inside: list[str] = []
    fence = ""
    language = ""
    for line in lines:
        mark = _FENCE.fullmatch(line.strip())
        if not fence and mark:
            fence, language, inside = mark[1], mark[2].lower(), []
        elif fence and mark and mark[1].startswith(fence) and not mark[2]:
            if language in ("", "python", "py", "python3"):
                found.append("\n".join(inside) + "\n")
            fence = ""
        elif fence:
            inside.append(line)
    if fence:
        raise ReplyError(Fault.CUT_OFF, "The reply's last fence is open; answer shorter, with the edit only.")
    return found


def _parsed(text: str, what: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        raise ReplyError(Fault.SYNTAX, f"{what} is not valid Python{line}: {reason}.") from error


def _replaced(parent: str, codes: Sequence[str]) -> str:
    """The parent with the definitions of the reply in place of its own of the same names, and the new ones added."""
    given: dict[str, str] = {}
    imports: dict[str, ast.Import | ast.ImportFrom] = {}
    for code in codes:
        for node in _parsed(code, "A fence of the reply").body:
            text = _segment(code, node)
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports[ast.unparse(node)] = node
            elif name := _name(node):
                if given.setdefault(name, text) != text:
                    raise ReplyError(Fault.AMBIGUOUS, f"The reply defines {name} more than once; define it once.")
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
                raise ReplyError(Fault.MALFORMED, f"The reply holds {text[:40]!r}; give whole functions only.")
    if not given:
        raise ReplyError(Fault.NO_EDIT, "The reply's fences define no function; give whole functions.")
    tree = _parsed(parent, "The parent")
    old = {name: node for node in tree.body if (name := _name(node))}
    lines = parent.replace("\r\n", "\n").split("\n")
    for node in sorted(old.values(), key=lambda each: -each.lineno):
        new = given.get(_name(node))
        if new is not None:
            lines[node.lineno - 1 : node.end_lineno] = new.split("\n")
    added = [text for name, text in given.items() if name not in old]
    source = "\n".join(lines).rstrip("\n") + "\n" + "".join(f"\n\n{text}\n" for text in added)
    return _with_imports(source, list(imports.values()))


def _with_imports(source: str, wanted: Sequence[ast.Import | ast.ImportFrom]) -> str:
    """The program with the imports that the reply brings or that its names can only mean, at their place."""
    tree = _parsed(source, "The program with the edit")
    bound = {name for node in tree.body for name in _bound(node)}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    missing = [line for node in wanted if (line := _unbound(node, bound))]
    bound |= {name for node in wanted for name in _bound(node)}
    missing += [line for name, line in IMPORTS.items() if name in used and name not in bound]
    if not missing:
        return source
    heads = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom) or _is_docstring(tree, n)]
    place = max((node.end_lineno or 0 for node in heads), default=0)
    lines = source.split("\n")
    only_docstring = bool(heads) and not any(isinstance(node, ast.Import | ast.ImportFrom) for node in heads)
    return "\n".join([*lines[:place], *([""] if only_docstring else []), *missing, *lines[place:]])


def _is_docstring(tree: ast.Module, node: ast.stmt) -> bool:
    return node is tree.body[0] and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _bound(node: ast.stmt) -> set[str]:
    return {_binds(each) for each in node.names} if isinstance(node, ast.Import | ast.ImportFrom) else {_name(node)}


def _binds(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _unbound(node: ast.Import | ast.ImportFrom, bound: set[str]) -> str:
    """An import of only those names that are not bound yet; "" where all are."""
    names = [each for each in node.names if _binds(each) not in bound]
    if not names:
        return ""
    return ast.unparse(
        ast.ImportFrom(node.module, names, node.level) if isinstance(node, ast.ImportFrom) else ast.Import(names)
    )


def _name(node: ast.stmt) -> str:
    """What a statement defines: a function or one constant; "" otherwise."""
    if isinstance(node, ast.FunctionDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    target = node.target if isinstance(node, ast.AnnAssign) else target
    return target.id if isinstance(target, ast.Name) else ""


def _segment(code: str, node: ast.stmt) -> str:
    return "\n".join(code.split("\n")[node.lineno - 1 : node.end_lineno])


def _note(lines: Sequence[str]) -> str:
    """The first line of plain words."""
    for line in lines:
        words = line.strip().lstrip("#*- ").removeprefix("Idea:").strip()
        if _FENCE.fullmatch(line.strip()) or line.startswith(("def ", "import ", "from ", '"""')):
            break
        if words:
            return words[:160]
    return ""
