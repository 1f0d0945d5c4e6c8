"""A policy: one file of functions, loaded from a built-in name, a path or an installed package's entry point.

Reads the specification and resolves what it names. How parameters are read is in parameters.py, how the file is run
and bound to them in binding.py; what a policy sees is in features.py, what it must satisfy in invariants.py; how the
source text is read without running it is in source.py.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import re
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from cachecraft.errors import PolicyLoadError, UnknownNameError
from cachecraft.policy.allocation import Allocation
from cachecraft.policy.binding import Unrun, bind
from cachecraft.policy.budgets_file import parse_allocation
from cachecraft.policy.features import Features
from cachecraft.policy.parameters import parse_parameters, written
from cachecraft.policy.selectors import Selector, parse_selector
from cachecraft.policy.source import ParameterValue, PolicySource, cost_class, read_source

_BUILTIN_FOLDER = Path(__file__).resolve().parent.parent / "policies"
_ENTRY_POINTS = "cachecraft.policies"
_SPEC = re.compile(r"(?P<head>.+?\.py|[^():,\s]+)(?:\((?P<base>.*)\))?(?::(?P<parameters>[^()]*))?")


@dataclass(frozen=True, eq=False)
class Policy:
    """An eviction policy, ready to be asked.

    Attributes:
        name: The specification in canonical form, with the parameters that differ from their defaults.
        source: The program text.
        parameters: Every parameter with its value.
        base: The policy that this one wraps, if it wraps one.
        selector: A selector given from outside; it replaces the policy's own.
        allocation: An allocation given from outside; likewise.
        paper: arXiv id named in the file's docstring, or "".
        summary: First line of the file's docstring.
        needs: Names of the features that the program reads, its base's included.
        id: SHA-256 over source, parameters, base, selector and allocation; names and paths do not count.
        origin: Where the program was read from.
    """

    name: str
    source: str
    parameters: Mapping[str, ParameterValue]
    base: Policy | None
    selector: Selector | None
    allocation: Allocation | None
    paper: str
    summary: str
    needs: tuple[str, ...]
    id: str
    origin: str
    _functions: Mapping[str, Callable[..., Any]] = field(repr=False)

    @property
    def cost(self) -> str:
        """``"O(T)"``, ``"O(wT)"`` or ``"O(T^2)"``, from the features it needs."""
        return cost_class(self.needs)

    @property
    def foreign(self) -> bool:
        """Whether it, or what it wraps, does not come with CacheCraft."""
        return self._outside or (self.base is not None and self.base.foreign)

    @property
    def _outside(self) -> bool:
        return Path(self.origin).parent != _BUILTIN_FOLDER

    @property
    def specification(self) -> str:
        """What `load_policy` reads to make it again, apart from selector and allocation; a file by its path."""
        short = self.name.partition("(")[0].partition(":")[0]
        wrapped = f"({self.base.name})" if self.base else ""
        written = f"({self.base.specification})" if self.base else ""
        return (self.origin if self._outside else short) + written + self.name[len(short + wrapped) :]

    @property
    def custom_selector(self) -> bool:
        """Whether the policy's own ``select_tokens_to_keep`` decides."""
        return self.selector is None and "select_tokens_to_keep" in self._functions

    @property
    def has_allocate(self) -> bool:
        """Whether the file has an ``allocate``."""
        return "allocate" in self._functions

    @property
    def waits(self) -> bool:
        """Whether its budget is divided by the scores of all layers, so that nothing is chosen before all are seen."""
        return self.has_allocate if self.allocation is None else self.allocation.waits

    def protect(self, f: Features) -> tuple[int, int]:
        """How many first and last entries are always kept; a wrapper without a rule follows its base."""
        if "protect" in self._functions:
            found: tuple[int, int] = self._functions["protect"](f)
            return found
        return self.base.protect(f) if self.base else (0, 0)

    def score(self, f: Features) -> Tensor:
        """Importance of each entry, (G, T); higher is kept longer. Unchecked: ``decide`` checks it."""
        scores: Tensor = self._functions["score_tokens"](f)
        return scores

    def select(self, scores: Tensor, keep: Tensor, f: Features) -> Tensor:
        """The policy's own choice, a (G, T) bool mask; PolicyLoadError if it has none."""
        return self._own("select_tokens_to_keep", scores, keep, f)

    def allocate(self, scores: Sequence[Tensor], total: int, floor: int) -> Tensor:
        """Entries for each layer and kv head, (L, G) int64; PolicyLoadError if there is no ``allocate``."""
        return self._own("allocate", scores, total, floor)

    def _own(self, name: str, *arguments: object) -> Tensor:
        if name not in self._functions:
            raise PolicyLoadError(f"Policy {self.name} has no {name}; add the function to {self.origin}.")
        found: Tensor = self._functions[name](*arguments)
        return found

    def reloaded(self) -> Policy:
        """The same policy run again from its source: it shares no state with this one."""
        base = self.base.reloaded() if self.base else None
        read = read_source(self.source, self.origin)
        return replace(self, base=base, _functions=bind(read, self.source, self.origin, self.parameters, base))


def builtin_policies() -> tuple[str, ...]:
    """Names of the policies that come with CacheCraft and need no other, in alphabetical order."""
    return tuple(name for name in _builtin_names() if not builtin_source(name).wraps)


def builtin_wrappers() -> tuple[str, ...]:
    """Names of the policies that come with CacheCraft and wrap another: ``criticalkv(snapkv)``."""
    return tuple(name for name in _builtin_names() if builtin_source(name).wraps)


def builtin_source(name: str) -> PolicySource:
    """What the text of a policy that comes with CacheCraft says about it; the program is not run."""
    path = _BUILTIN_FOLDER / f"{name}.py"
    return read_source(path.read_text(encoding="utf-8"), str(path))


def _builtin_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _BUILTIN_FOLDER.glob("*.py") if not path.stem.startswith("_")))


def load_policy(
    spec: str, *, selector: str | None = None, allocation: str | Allocation | None = None, run: bool = True
) -> Policy:
    """Load a policy.

    Args:
        spec: ``NAME`` or ``PATH.py``, then optionally ``(BASE SPEC)`` for a wrapper, then optionally
            ``:key=value,key=value``; for example ``"snapkv:window=32"`` or ``"criticalkv(snapkv)"``.
        selector: ``"tokens"``, ``"chunks:20"`` or ``"pages:16"``, instead of the policy's own choice.
        allocation: ``"uniform"``, ``"pyramid"``, ``"reversed_pyramid"``, ``"adaptive"``, ``"global"`` or a budgets
            file, instead of the policy's own division.
        run: Run the program now, so that what is wrong with it shows; without, it runs when it is first asked, which
            is never where another process is asked instead.

    Returns:
        The policy. Each call runs its program anew, so that no two share state.

    Raises:
        UnknownNameError: No such policy, parameter, selector or allocation.
        PolicyLoadError: The specification or the file cannot be read.
        BudgetError: The budgets file cannot be read or means nothing.
    """
    match = _SPEC.fullmatch(spec.strip())
    if match is None:
        raise PolicyLoadError(
            f"Policy specification {spec!r} cannot be read; write NAME or PATH.py, then (BASE) for a "
            "wrapper, then :key=value,key=value."
        )
    head = match["head"].strip()
    name, origin = _locate(head)
    try:
        source = Path(origin).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise PolicyLoadError(f"Policy file {origin} cannot be read: {reason}; check the path.") from error
    read = read_source(source, origin)
    return policy_from_source(
        source,
        name=name,
        origin=origin,
        base=_load_base(name, read, match["base"], run),
        parameters=parse_parameters(name, read, match["parameters"]),
        selector=selector,
        allocation=parse_allocation(allocation) if isinstance(allocation, str) else allocation,
        run=run,
    )


def policy_from_source(
    source: str,
    *,
    name: str,
    origin: str,
    base: Policy | None = None,
    parameters: Mapping[str, ParameterValue] | None = None,
    selector: str | None = None,
    allocation: Allocation | None = None,
    run: bool = True,
) -> Policy:
    """Make a policy of a program text.

    Args:
        source: The program text.
        name: The policy's short name, without base and parameters.
        origin: Where the text is from, for messages.
        base: The policy that this one wraps, if it wraps one.
        parameters: Values of the parameters that differ from their defaults.
        selector: As for `load_policy`.
        allocation: Replaces the text's own division.
        run: As for `load_policy`.

    Raises:
        UnknownNameError: No such selector.
        PolicyLoadError: The text is no policy.
    """
    read = read_source(source, origin)
    values = {key: (parameters or {}).get(key, default) for key, default in read.parameters.items()}
    chosen = parse_selector(selector) if selector is not None else None
    shown = [f"{key}={written(value)}" for key, value in values.items() if value != read.parameters[key]]
    parts = [source, sorted(values.items()), base.id if base else None, str(chosen)]
    identity = json.dumps(parts if allocation is None else [*parts, allocation.identity])
    return Policy(
        name=name + (f"({base.name})" if base else "") + (":" + ",".join(shown) if shown else ""),
        source=source,
        parameters=types.MappingProxyType(values),
        base=base,
        selector=chosen,
        allocation=allocation,
        paper=read.paper,
        summary=read.summary,
        needs=tuple(sorted({*read.needs, *(base.needs if base else ())})),
        id=hashlib.sha256(identity.encode()).hexdigest(),
        origin=origin,
        _functions=(bind if run else Unrun)(read, source, origin, values, base),
    )


def _locate(head: str) -> tuple[str, str]:
    """The policy's short name and its file."""
    if head.endswith(".py"):
        return Path(head).stem, str(Path(head).expanduser())
    builtin = _builtin_names()
    if head in builtin:
        return head, str(_BUILTIN_FOLDER / f"{head}.py")
    installed = {entry.name: entry.value for entry in importlib.metadata.entry_points(group=_ENTRY_POINTS)}
    if head not in installed:
        raise UnknownNameError("policy", head, {*builtin, *installed}, "`cachecraft policies` lists them.")
    module = installed[head].partition(":")[0]
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None or not found.origin or not found.origin.endswith(".py"):
        raise PolicyLoadError(
            f"Policy {head} is said to be the module {module}, which cannot be found; install its package again."
        )
    return head, found.origin


def _load_base(name: str, read: PolicySource, spec: str | None, run: bool) -> Policy | None:
    if read.wraps and not (spec and spec.strip()):
        raise PolicyLoadError(f"Policy {name} wraps another one; name it in parentheses, for example {name}(snapkv).")
    if spec is None:
        return None
    if not read.wraps:
        raise PolicyLoadError(f"Policy {name} wraps nothing; leave out ({spec}).")
    return load_policy(spec, run=run)
