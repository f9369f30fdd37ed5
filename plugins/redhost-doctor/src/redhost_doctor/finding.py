"""What the doctor examines, and what it finds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

State = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is examined.

    Attributes:
        home: The state folder, never that of a question in it.
        deep: Whether every stored and installed byte is hashed.
    """

    home: Path
    deep: bool = False


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an examination.

    Attributes:
        check: The check that it comes from, a stable word.
        state: ``ok``; ``warn``, for what works and should be changed; ``fail``, for what does not.
        text: What was seen.
        mend: The command that mends it; empty if it is ``ok``, or if no single command can.
        next: What to type next where a recompose decides, which may refuse; else empty.
    """

    check: str
    state: State
    text: str
    mend: str = ""
    next: str = ""


@dataclass(frozen=True, kw_only=True)
class Step:
    """A command that mends something.

    Attributes:
        command: The command.
        note: What else it changes, as a sentence's end; empty if nothing.
    """

    command: str
    note: str = ""


def ok(check: str, text: str) -> Finding:
    """Return a finding that nothing is wrong."""
    return Finding(check=check, state="ok", text=text)


def warn(check: str, text: str, *, mend: str = "", then: str = "") -> Finding:
    """Return a finding of something that works and should be changed."""
    return Finding(check=check, state="warn", text=text, mend=mend, next=then)


def fail(check: str, text: str, *, mend: str = "", then: str = "") -> Finding:
    """Return a finding of something that does not work."""
    return Finding(check=check, state="fail", text=text, mend=mend, next=then)
