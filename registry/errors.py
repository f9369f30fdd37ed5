"""The one tree of exceptions: who, expected, found, what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar

MAX_PART = 4000
"""Characters that each part of a message may have: one may name every expert of a composition."""


class RedhostError(Exception):
    """Everything redhost raises on purpose.

    Args:
        problem: Who failed and at what, e.g. ``expert 'fr-legal' was not attached``.
        expected: What would have been right.
        found: What was there instead.
        hint: What the reader can type or change next.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self, problem: str, *, expected: str = "", found: str = "", hint: str = ""
    ) -> None:
        self.problem, self.expected, self.found, self.hint = problem, expected, found, hint
        super().__init__(str(self))

    @property
    def reason(self) -> str:
        """The line without its hint."""
        named = {"expected": self.expected, "found": self.found}
        facts = [f"{name} {excerpt(value)}" for name, value in named.items() if value]
        problem = excerpt(self.problem)
        return f"{problem}: {', '.join(facts)}" if facts else problem

    def __str__(self) -> str:
        return f"{self.reason}. {excerpt(self.hint)}" if self.hint else self.reason


class ManifestError(RedhostError):
    """A manifest is not JSON, or says something the closed schema does not know."""


class IntegrityError(RedhostError):
    """Bytes on disk are not the bytes that were promised."""


class ContractError(RedhostError):
    """A package is valid by itself but does not fit where it is wanted."""


class BackboneMismatchError(ContractError):
    """An expert was built on another backbone than the one at hand (law 4)."""


class CanaryError(ContractError):
    """An expert does not compute what its author recorded."""


class CardError(ContractError):
    """A routing card cannot train the wanted router."""


class CompositionError(RedhostError):
    """A composition cannot be made, or cannot be loaded again."""


class FrozenError(CompositionError):
    """Frozen weights moved while a router was trained (law 1); nothing is published."""


class HarmError(CompositionError):
    """Something that worked would stop working (law 3), or what was made is worth nothing."""


class HijackError(HarmError):
    """A newcomer brings what is another's: its rows, its sums, or more weight than all have."""


class SwapInProgressError(RedhostError):
    """A live host is already changing its generation; one change at a time."""


class StaleGenerationError(RedhostError):
    """Another generation is served than the caller of a change believed."""


class JobsError(RedhostError):
    """Some jobs failed on every attempt; the results of the others are stored."""


class PluginError(RedhostError):
    """A plugin is misspelt, in conflict, or raised."""


class UsageError(RedhostError):
    """The command or call cannot mean anything as written."""

    exit_code = 2


class InputTypeError(UsageError, TypeError):
    """A call was given something of another type than it takes; a `TypeError` as well."""


class UnknownNameError(UsageError):
    """A name is not among those known; the closest ones are suggested."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        listed = f"Known: {', '.join(names)}." if names else f"There is no {kind} here."
        super().__init__(f"unknown {kind} {name!r}", hint=f"{suggest(name, names)}{listed}")


class MissingError(RedhostError):
    """The environment lacks what the command needs (nothing installed, nothing composed)."""

    exit_code = 3


class SettingsError(MissingError):
    """Settings are missing or leave a choice open."""


class InstallError(MissingError):
    """pip, or uv, failed."""


class LockHeldError(MissingError):
    """Another process is writing to the same home."""


class StoreError(MissingError):
    """The state on disk cannot be read or written."""


def suggest(name: str, known: Iterable[str]) -> str:
    """Return ``Did you mean 'x'? `` for the closest known name, or an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"Did you mean {close[0]!r}? " if close else ""


def excerpt(text: str, *, most: int = MAX_PART) -> str:
    """Return how a text begins, as one line: what a package wrote may be a whole book."""
    return one_line(text if len(text) <= most else f"{text[:most]}…")


def one_line(text: str) -> str:
    """Return a text as one line: what a package wrote may hold line ends and terminal codes."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def short(digest: str) -> str:
    """Return a digest as people read it: ``sha256:`` and its first twelve digits."""
    return f"sha256:{digest[:12]}…" if digest else "none"
