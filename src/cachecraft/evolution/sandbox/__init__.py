"""Where candidates run: `Sandbox`, what it is asked and what it answers; docs/sandbox.md says what it stops."""

from cachecraft.evolution.sandbox.program import Program
from cachecraft.evolution.sandbox.runner import Sandbox
from cachecraft.evolution.sandbox.shared import SharedItem, share
from cachecraft.evolution.sandbox.verdict import Ask, Choice, Limits, SandboxError, State, Verdict

__all__ = ["Ask", "Choice", "Limits", "Program", "Sandbox", "SandboxError", "SharedItem", "State", "Verdict", "share"]
