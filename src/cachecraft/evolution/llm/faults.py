"""Why a reply of a model, or the program that it makes, is not used: the kinds, and the error that says so."""

from __future__ import annotations

from enum import StrEnum

from cachecraft.errors import CacheCraftError


class Fault(StrEnum):
    """Why a reply, or the program that it makes, is not used.

    Attributes:
        EMPTY: No text.
        REFUSAL: The model or its provider declined.
        CUT_OFF: It ends before it is complete.
        NO_EDIT: Text without an edit.
        MALFORMED: Markers out of order, or an edit that is none.
        NO_MATCH: A SEARCH part that the program does not hold.
        DOUBLE_MATCH: A SEARCH part that the program holds more than once.
        AMBIGUOUS: Several fences define one function differently.
        SYNTAX: What comes out is not valid Python.
        OUTSIDE: It edits what may not be edited.
        NOT_ALLOWED: The static checker refuses what comes out.
        UNCHANGED: What comes out is the parent.
        NUMBERS: What comes out differs from the parent in numbers only, where that is left out.
        KNOWN: What comes out was tried before.
    """

    EMPTY = "empty"
    REFUSAL = "refusal"
    CUT_OFF = "cut off"
    NO_EDIT = "no edit"
    MALFORMED = "malformed edit"
    NO_MATCH = "unmatched SEARCH"
    DOUBLE_MATCH = "doubly matching SEARCH"
    AMBIGUOUS = "ambiguous"
    SYNTAX = "invalid Python"
    OUTSIDE = "edit outside the editable part"
    NOT_ALLOWED = "not allowed"
    UNCHANGED = "unchanged"
    NUMBERS = "numbers only"
    KNOWN = "known program"


class ReplyError(CacheCraftError):
    """A reply that is not used; its sentence is written for the model to mend it."""

    def __init__(self, fault: Fault, sentence: str) -> None:
        """Keep the kind beside the sentence."""
        super().__init__(sentence)
        self.fault = fault

    @property
    def mendable(self) -> bool:
        """Whether asking once more with the sentence has a point."""
        return self.fault not in (Fault.EMPTY, Fault.REFUSAL)
