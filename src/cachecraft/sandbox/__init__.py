"""Where candidates run: `Sandbox`, what it is asked and what it answers; docs/sandbox.md says what it stops."""

from cachecraft.sandbox.program import Program
from cachecraft.sandbox.runner import Sandbox
from cachecraft.sandbox.shared import SharedItem, share
from cachecraft.sandbox.sharing import shared_out
from cachecraft.sandbox.verdict import Ask, Choice, Limits, SandboxError, State, Verdict

__all__ = [
    "Ask",
    "Choice",
    "Limits",
    "Program",
    "Sandbox",
    "SandboxError",
    "SharedItem",
    "State",
    "Verdict",
    "share",
    "shared_out",
]
