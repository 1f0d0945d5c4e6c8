"""The candidate's own process, from the fork to its end: confine, load the program, answer, exit.

Nothing here is trusted by the other side: the program that runs in this process may do to it what it likes.
"""

from __future__ import annotations

import errno
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.machinery import BuiltinImporter, FrozenImporter
from typing import Any, NoReturn

import torch

from cachecraft.errors import CacheCraftError
from cachecraft.policy.check import broken_rules
from cachecraft.policy.contract import Policy
from cachecraft.policy.decide import Decision
from cachecraft.policy.invariants import FeatureWriteError, NondeterminismError, PolicyRaisedError, StateLeakError
from cachecraft.policy.sequence import decide_sequence
from cachecraft.sandbox.confinement import Bounds, confine, die_with, keep_only
from cachecraft.sandbox.faults import explain_faults
from cachecraft.sandbox.program import Program
from cachecraft.sandbox.shared import SharedItem
from cachecraft.sandbox.system_calls import forbid
from cachecraft.sandbox.verdict import State, packed
from cachecraft.sandbox.wire import harmless, write_frame

_ANSWER = 3
_STATES = {
    FeatureWriteError: State.WROTE_FEATURES,
    NondeterminismError: State.NONDETERMINISTIC,
    StateLeakError: State.STATE_LEAK,
    PolicyRaisedError: State.RAISED,
}
_NO_MEMORY = ("can't allocate memory", "std::bad_alloc", "not enough memory")
_CHEAP = ("keys", "values", "queries", "output_projection", "positions")


def become_candidate(
    request: Mapping[str, Any],
    files: Sequence[int],
    items: Mapping[str, SharedItem],
    *,
    parent: int | None,
    root: bool,
) -> NoReturn:
    """Turn this process into a candidate; it ends with its answer written, or without.

    Args:
        request: What to do: ``program``, ``work``, ``asks`` and the limits.
        files: Where the answer goes and where what is printed goes.
        items: The items that may be asked about.
        parent: The server that forked this process, or None if it is that server itself.
        root: The server was started by root.
    """
    code = 1
    try:
        if parent is not None:
            os.setsid()
        keep_only(*files)
        bounds = Bounds(request["seconds"], request["memory_bytes"], request["file_bytes"])
        missing = confine(bounds, root=root)
        if parent is not None:
            die_with(parent)
        held = _close_doors(request, items, missing)
        _work(request, items, missing)
        code = 0 if held is not None else 1
    except BaseException as error:  # whatever it is, this process ends here
        _tell_error(error)
    finally:
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _close_doors(request: Mapping[str, Any], items: Mapping[str, SharedItem], missing: list[str]) -> object:
    """Modules that are not loaded stay so, faults are explained, system calls are filtered."""
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter]
    # Chance differs from one process to the next, so that who relies on it shows.
    torch.default_generator.manual_seed(int.from_bytes(os.urandom(7), "big"))
    random.seed()

    def whose(address: int) -> str | None:
        return next((found for item in items.values() if (found := item.whose(address))), None)

    def tell(kind: str, what: str, line: int) -> None:
        write_frame(_ANSWER, {"fault": kind, "what": what, "line": line})

    held = explain_faults(whose, f"{request['program']['name']}.py", tell)
    refused = forbid() if request["filter"] else "the filter of system calls is turned off"
    if refused:
        missing.append(refused)
    return held


def _work(request: Mapping[str, Any], items: Mapping[str, SharedItem], missing: Sequence[str]) -> None:
    if request["work"] == "probe":
        write_frame(_ANSWER, {"missing": list(missing)})
        return
    policy = Program.from_json(request["program"]).load()
    if request["work"] == "check":
        broken = broken_rules(policy)
        if broken:
            raise broken[0]
        write_frame(_ANSWER, {"kept": True})
        return
    for ask in request["asks"]:
        _choose(policy, items[ask["item"]], ask["keeps"])


def _choose(policy: Policy, item: SharedItem, keeps: Sequence[int]) -> None:
    """Answer one question with one record: every budget's masks, packed."""
    computed: set[str] = set()

    def layers() -> Any:
        for layer in item.layers():
            yield layer
            computed.update(layer.heavy)

    began = time.perf_counter()
    found = decide_sequence(policy, layers, keeps)
    seconds = time.perf_counter() - began
    header = {
        "seconds": seconds,
        "read_keep": any(decision.read_keep for decisions in found for decision in decisions),
        "forced": [all(decision.forced for decision in decisions) for decisions in found],
        "notes": [decisions[0].note for decisions in found],
        "computed": sorted(computed.difference(_CHEAP)),
    }
    write_frame(_ANSWER, header, b"".join(map(_packed, found)))


def _packed(decisions: Sequence[Decision]) -> bytes:
    return packed(torch.stack([decision.mask for decision in decisions]))


def _tell_error(error: BaseException) -> None:
    """One record that says what was wrong."""
    chain: list[BaseException] = [error]
    while (cause := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 8:
        chain.append(cause)
    if any(map(_for_memory, chain)):
        state, reason = State.MEMORY, "asked for more memory than it may have; keep intermediate arrays small."
    elif isinstance(error, CacheCraftError):
        state = next((state for kind, state in _STATES.items() if isinstance(error, kind)), State.BROKEN)
        reason = harmless(error)
    else:
        state = State.RAISED
        reason = f"raised {type(error).__name__} ({harmless(error, 200)}); it must give a result."
    write_frame(_ANSWER, {"error": state, "rule": type(error).__name__, "reason": reason})


def _for_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return True
    return any(words in str(error) for words in _NO_MEMORY)
