"""The static gate: is a program text plain enough to be run, measured and read by a person?

It limits the text's size and walks its syntax tree against what is allowed (syntax in reading.py, names in
vocabulary.py), so that what is not known is refused. It never runs the program. It gives readable reasons early and
keeps policies simple; it is not what stops hostile code: that is the sandbox, which does not rely on it.
"""

from __future__ import annotations

import ast

from cachecraft.errors import PolicyLoadError
from cachecraft.evolution.reading import Reading
from cachecraft.policy.source import read_source

MOST_CHARACTERS = 20_000
MOST_NODES = 3_000
DEEPEST = 40
_MOST_SENTENCES = 12


def check_source(source: str) -> list[str]:
    """Read a policy's program text without running it.

    Args:
        source: The text.

    Returns:
        One sentence for each thing that is not allowed, in the order of the text and at most twelve; an empty list if
        the program may be run.
    """
    if len(source) > MOST_CHARACTERS:
        return [f"The program has {len(source)} characters; write at most {MOST_CHARACTERS}."]
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        line = f" in line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        reason = error.msg if isinstance(error, SyntaxError) else str(error)
        return [f"The program is not valid Python{line}: {reason}; mend it."]
    except (MemoryError, RecursionError):
        return ["The program is nested too deeply to be read; write it flatter."]
    nodes, depth = _measure(tree)
    if nodes > MOST_NODES:
        return [f"The program has {nodes} syntax nodes; write at most {MOST_NODES}."]
    if depth > DEEPEST:
        return [f"The program is nested {depth} levels deep; write at most {DEEPEST}."]
    found = list(dict.fromkeys(sentence for _, sentence in sorted(Reading(tree).sentences())))
    if not found:
        try:
            read_source(source, "program")
        except PolicyLoadError as error:
            found.append(str(error))
    return found[:_MOST_SENTENCES]


def _measure(tree: ast.AST) -> tuple[int, int]:
    """Number of nodes and depth of the tree."""
    nodes, deepest, waiting = 0, 0, [(tree, 1)]
    while waiting:
        node, depth = waiting.pop()
        nodes, deepest = nodes + 1, max(deepest, depth)
        waiting += [(child, depth + 1) for child in ast.iter_child_nodes(node)]
    return nodes, deepest
