"""What a candidate may edit, as named levels, and which features it may use; and the check that it did no more.

An edit outside the editable part is rejected, never merged: the protected part of parent and child is compared as
syntax trees, docstrings and layout aside, with everything of the module that it reaches. Nothing here runs a program,
and what a program may do at all is the gate's business.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from cachecraft.errors import PolicyLoadError, RunError, UnknownNameError
from cachecraft.policy.source import CONTRACT, FEATURES, METHODS, read_source

Level = Literal["constants", "scorer", "selector", "scorer+selector", "allocation"]
LEVELS: tuple[Level, ...] = get_args(Level)

# Shapes, and what every selector must honour: not features that could be withheld.
BASIC = frozenset({"tokens", "heads", "kv_heads", "head_dim", "protected"})

# The functions of the contract that each level lets a candidate rewrite, with the helpers that only they use.
_EDITABLE: Mapping[str, frozenset[str]] = {
    "constants": frozenset(),
    "scorer": frozenset({"score_tokens"}),
    "selector": frozenset({"protect", "select_tokens_to_keep"}),
    "scorer+selector": frozenset({"score_tokens", "protect", "select_tokens_to_keep"}),
    "allocation": frozenset({"allocate"}),
}


@dataclass(frozen=True)
class Interface:
    """What a candidate may change.

    Attributes:
        level: ``constants`` (numbers anywhere), ``scorer``, ``selector`` (which entries stay whatever or given their
            scores), ``scorer+selector`` or ``allocation``.
        features: Names of the features that an edited program may read; None for all of them.
    """

    level: Level = "scorer+selector"
    features: frozenset[str] | None = None

    def __post_init__(self) -> None:
        """Refuse names that do not exist.

        Raises:
            UnknownNameError: No such level or feature.
        """
        if self.level not in LEVELS:
            raise UnknownNameError("interface level", str(self.level), LEVELS)
        for name in sorted(self.features or ()):
            if name not in FEATURES:
                raise UnknownNameError("feature", name, FEATURES)

    @property
    def editable(self) -> frozenset[str]:
        """Functions of the contract that may be rewritten."""
        return _EDITABLE[self.level]

    def offers(self, *features: str) -> bool:
        """Whether all of these features may be read."""
        return self.features is None or (self.features | BASIC).issuperset(features)

    def to_dict(self) -> dict[str, Any]:
        """Plain types, for run.yaml and the candidates' records."""
        return {"level": self.level, "features": None if self.features is None else sorted(self.features)}

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Interface:
        """The inverse of `to_dict`.

        Raises:
            RunError: Other keys or types than `to_dict` writes.
            UnknownNameError: No such level or feature.
        """
        features = found.get("features")
        if set(found) != {"level", "features"} or not (
            features is None or (isinstance(features, list) and all(isinstance(name, str) for name in features))
        ):
            raise RunError(f"An interface cannot be read from {dict(found)!r}; it has a level and a list of features.")
        return cls(found["level"], None if features is None else frozenset(features))


def check_edit(parent: str, child: str, interface: Interface) -> list[str]:
    """Did a child change only what it may?

    Args:
        parent: Source of a policy that keeps the contract's form.
        child: Source to check.
        interface: What may be changed.

    Returns:
        A sentence for each thing that is not allowed; an empty list if the edit may be evaluated.
    """
    try:
        read_source(child, "child")
        old, new = _Module(parent), _Module(child)
    except PolicyLoadError as error:
        return [str(error)]
    problems = new.problems()
    if interface.level == "constants":
        if _masked(old.tree) != _masked(new.tree):
            problems.append("More than numbers was changed; at the level 'constants' everything else stays as it is.")
        return problems
    for name in CONTRACT:
        if name in interface.editable:
            continue
        before, after = old.reached({name}), new.reached({name})
        if before != after:
            problems.append(_difference(name, before, after, interface))
    untouched = {name for name in CONTRACT if name not in interface.editable}
    for feature in sorted(new.features(new.definitions.keys() - new.closure(untouched))):
        if not interface.offers(feature):
            problems.append(f"The feature {feature} may not be read; offered are {_listed(interface.features or ())}.")
    return problems


def only_numbers(parent: str, child: str) -> bool:
    """Whether a child that keeps the contract's form differs from its parent in numbers at most."""
    return not check_edit(parent, child, Interface("constants"))


def protected_definitions(source: str, interface: Interface) -> frozenset[str]:
    """Names of the module-level definitions that an edit must leave as they are."""
    module = _Module(source)
    return frozenset(module.closure({name for name in CONTRACT if name not in interface.editable}))


def _listed(names: frozenset[str] | tuple[str, ...]) -> str:
    return ", ".join(sorted(names)) or "none"


def _difference(name: str, before: Mapping[str, str], after: Mapping[str, str], interface: Interface) -> str:
    if name not in before:
        what = f"The function {name} was added"
    elif name not in after:
        what = f"The function {name} was removed"
    else:
        changed = sorted(key for key in {*before, *after} if before.get(key) != after.get(key))
        what = f"The function {name} was changed" if changed == [name] else f"{name} uses {', '.join(changed)}, changed"
    return f"{what}; at the level {interface.level!r} only {_listed(interface.editable)} may be edited."


class _Module:
    """A policy's module-level definitions: functions, constants and imported names, with what each one mentions."""

    def __init__(self, source: str) -> None:
        try:
            self.tree = ast.parse(source)
        except (SyntaxError, ValueError) as error:
            raise PolicyLoadError(f"The program is not valid Python: {error}; mend it.") from error
        self.definitions: dict[str, str] = {}  # name -> what it is, as text without layout
        self._nodes: dict[str, ast.AST] = {}
        self._mentions: dict[str, frozenset[str]] = {}
        self._twice: list[str] = []
        self._loose: list[int] = []
        for node in self.tree.body:
            if not self._is_docstring(node) and not self._define(node):
                self._loose.append(node.lineno)

    def _is_docstring(self, node: ast.stmt) -> bool:
        return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)

    def _define(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.FunctionDef):
            self._add(node.name, node, ast.dump(_without_docstrings(node)))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            base = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                bound = alias.asname or (alias.name if base else alias.name.partition(".")[0])
                # `import a.b` and `import a` bind the same name; both stay in the text that is compared.
                self._add(bound, node, f"import {base}{alias.name}", again=not base)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if not all(isinstance(target, ast.Name) for target in targets) or node.value is None:
                return False
            for target in targets:
                assert isinstance(target, ast.Name)
                self._add(target.id, node.value, ast.dump(node.value))
        else:
            return False
        return True

    def _add(self, name: str, node: ast.AST, text: str, *, again: bool = False) -> None:
        if name in self.definitions and not again:
            self._twice.append(name)
        self.definitions[name] = f"{self.definitions[name]}; {text}" if name in self.definitions else text
        self._nodes[name] = node
        own = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
        self._mentions[name] = self._mentions.get(name, frozenset()) | own

    def problems(self) -> list[str]:
        """What no program of a run may have, because it would blur what belongs to which function."""
        found = [f"{name} is defined twice; define it once." for name in dict.fromkeys(self._twice)]
        found += [
            f"Line {line} runs when the file is loaded; a policy only imports and defines." for line in self._loose
        ]
        if any(isinstance(node, ast.Global | ast.Nonlocal) for node in ast.walk(self.tree)):
            found.append(
                "A function writes to a name outside itself (global or nonlocal); keep values in local variables."
            )
        return found

    def closure(self, names: set[str]) -> set[str]:
        """Every definition that these names reach."""
        found: set[str] = set()
        waiting = [name for name in names if name in self.definitions]
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                waiting += [each for each in self._mentions[name] if each in self.definitions]
        return found

    def reached(self, names: set[str]) -> dict[str, str]:
        """The text of every definition that these names reach."""
        return {name: self.definitions[name] for name in self.closure(names)}

    def features(self, names: set[str]) -> set[str]:
        """Features that these definitions may read, whatever the object is called that they read them from."""
        modules = {name for name, node in self._nodes.items() if isinstance(node, ast.Import | ast.ImportFrom)}
        found: set[str] = set()
        for name in names:
            node = self._nodes[name]
            if isinstance(node, ast.FunctionDef):
                found |= set(_features_read(node, modules))
        return found


def _features_read(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or node.attr not in FEATURES:
            continue
        if isinstance(node.value, ast.Name) and node.value.id in modules:
            continue
        # `scores.sort(dim=-1).values` is a tensor's result, not a feature.
        of_result = isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute)
        if not of_result and (id(node) in called) == (node.attr in METHODS):
            yield node.attr


class _Stripped(ast.NodeTransformer):
    """Drops docstrings; with `numbers`, also what the numbers are, but not whether they are whole."""

    def __init__(self, *, numbers: bool = False) -> None:
        self._numbers = numbers

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        signed = self._numbers and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant)
        return node.operand if signed else node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if self._numbers and type(node.value) in (int, float):
            return ast.Constant(0 if isinstance(node.value, int) else 0.0)
        return node


def _without_docstrings(node: ast.AST) -> ast.AST:
    stripped: ast.AST = _Stripped().visit(copy.deepcopy(node))
    return stripped


def _masked(tree: ast.AST) -> str:
    return ast.dump(_Stripped(numbers=True).visit(copy.deepcopy(tree)))
