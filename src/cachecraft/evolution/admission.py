"""The cascade's first two stages: is the text fit to be run, and does the program keep the contract?

Stage 0 reads the text (gate.py). Stage 1 runs it in the sandbox: on synthetic layers, then on recorded items in one
process and once more in a fresh process, in the opposite order and each twice, and compares the choices bit by bit on
this side. Neither knows what a good choice is.
"""

from __future__ import annotations

from collections.abc import Sequence

from cachecraft.evolution.gate import check_source
from cachecraft.sandbox import Ask, Choice, Program, Sandbox, State, Verdict


def static_stage(program: Program) -> Verdict:
    """Stage 0: read the program's text and those of the programs that it wraps; nothing runs."""
    sentences = check_source(program.source)
    if sentences:
        return Verdict(State.REFUSED, f"Policy {program.name} may not run: {' '.join(sentences)}")
    return Verdict(State.OK) if program.base is None else static_stage(program.base)


def contract_stage(sandbox: Sandbox, program: Program, asks: Sequence[Ask]) -> Verdict:
    """Stage 1: run the program on synthetic layers and on recorded items, repeated and in another order.

    Args:
        sandbox: Where it runs, with the items loaded.
        program: The candidate.
        asks: A few recorded items, better more than one, each at two budgets or more: state that is carried from one
            sample or budget to the next shows on those.

    Returns:
        What is wrong first, or the choices for `asks`: they need not be asked for again.
    """
    verdict = sandbox.check(program)
    if not verdict.ok:
        return verdict
    first = sandbox.run(program, asks)
    if not first.ok:
        return first
    backwards = [Ask(ask.item, ask.keeps[::-1]) for ask in reversed(asks) for _ in range(2)]
    second = sandbox.run(program, backwards)
    if not second.ok:
        return second
    again = second.choices[::2][::-1], second.choices[1::2][::-1]
    if all(_same(before, after, backwards=True) for choices in again for before, after in _pairs(first, choices)):
        return first
    repeated = sandbox.run(program, asks)
    if not repeated.ok:
        return repeated
    if not all(_same(before, after) for before, after in _pairs(first, repeated.choices)):
        return Verdict(
            State.NONDETERMINISTIC,
            f"Policy {program.name} gave two results for one recorded context; draw random numbers with "
            "f.generator() and use no clock.",
            "NondeterminismError",
        )
    return Verdict(
        State.STATE_LEAK,
        f"Policy {program.name} gave another result when recorded contexts and budgets came in another order or twice; "
        "keep nothing between calls.",
        "StateLeakError",
    )


def _pairs(first: Verdict, choices: Sequence[Choice]) -> list[tuple[Choice, Choice]]:
    return list(zip(first.choices, choices, strict=True))


def _same(before: Choice, after: Choice, *, backwards: bool = False) -> bool:
    """Bit for bit, whatever else it says of itself."""
    return before.bits == (after.bits[::-1] if backwards else after.bits)
