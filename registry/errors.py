"""The tree of exceptions; each one has a problem, expected and found values, and a hint."""

from __future__ import annotations

import copyreg
from collections.abc import Iterable
from typing import ClassVar

MAX_PART = 4000
"""Most characters of each part of a message: one part may name every expert of a composition."""


MAX_NAME = 200
"""Most characters of a name that is compared with known ones: a package may have any."""


class RedhostError(Exception):
    """Base class of everything that redhost raises on purpose.

    Args:
        problem: What failed, e.g. ``expert 'fr-legal' was not attached``.
        expected: What would have been correct.
        found: What was found instead.
        hint: What the user can type or change next.
    """

    exit_code: ClassVar[int] = 1

    def __init__(
        self, problem: str, *, expected: str = "", found: str = "", hint: str = ""
    ) -> None:
        self.problem, self.expected, self.found, self.hint = problem, expected, found, hint
        super().__init__(str(self))

    def __reduce__(self) -> tuple[object, ...]:
        """Return what makes it again in another process, whatever arguments made it here."""
        return copyreg.__newobj__, (type(self), *self.args), vars(self)  # type: ignore[attr-defined]

    @property
    def reason(self) -> str:
        """The message without its hint, in one line."""
        named = {"expected": self.expected, "found": self.found}
        facts = [f"{name} {excerpt(value)}" for name, value in named.items() if value]
        problem = excerpt(self.problem)
        return f"{problem}: {', '.join(facts)}" if facts else problem

    def __str__(self) -> str:
        return f"{self.reason}. {excerpt(self.hint)}" if self.hint else self.reason


class ManifestError(RedhostError):
    """A manifest is not JSON, or violates the closed schema."""


class IntegrityError(RedhostError):
    """Bytes on disk differ from the promised ones."""


class ContractError(RedhostError):
    """A package is valid by itself but does not fit its intended use."""


class BackboneMismatchError(ContractError):
    """An expert was built on another backbone than the one in use (law 4)."""


class CanaryError(ContractError):
    """An expert does not compute the results that its author recorded."""


class CardError(ContractError):
    """A routing card cannot train the chosen router."""


class CompositionError(RedhostError):
    """A composition cannot be made, or cannot be loaded again."""


class FrozenError(CompositionError):
    """Frozen weights changed while a router was trained (law 1); nothing is published."""


class HarmError(CompositionError):
    """Something that worked would stop working (law 3), or a new result is of no use."""


class HijackError(HarmError):
    """A newcomer uses a member's rows or sums, or claims more weight than all members."""


class SwapInProgressError(RedhostError):
    """A live host is already changing its generation; one change at a time."""


class StaleGenerationError(RedhostError):
    """The served generation is not the one that the caller of a change expected."""


class PluginError(RedhostError):
    """A plugin has a wrong name, conflicts with another one, or raised an error."""


class UsageError(RedhostError):
    """The command or call is invalid as written."""

    exit_code = 2


class InputTypeError(UsageError, TypeError):
    """A call was given an argument of the wrong type; also a `TypeError`."""


class UnknownNameError(UsageError):
    """A name is unknown; the closest known names are suggested."""

    def __init__(self, kind: str, name: str, names: Iterable[str]) -> None:
        choices = sorted(names)
        listed = f"Known: {', '.join(choices)}." if choices else f"There is no {kind} here."
        super().__init__(f"unknown {kind} {name!r}", hint=f"{suggest(name, choices)}{listed}")


class MissingError(RedhostError):
    """The environment lacks what the command needs (nothing installed, nothing composed)."""

    exit_code = 3


class SettingsError(MissingError):
    """Settings are missing or ambiguous."""


class InstallError(MissingError):
    """pip, or uv, failed."""


class LockHeldError(MissingError):
    """Another process is writing to the same home."""


class StoreError(MissingError):
    """The state on disk cannot be read or written."""


def suggest(name: str, names: Iterable[str]) -> str:
    """Return ``Did you mean 'x'? `` for the closest known name, or an empty string."""
    import difflib

    close = difflib.get_close_matches(name[:MAX_NAME], list(names), n=1)
    return f"Did you mean {close[0]!r}? " if close else ""


def excerpt(text: str, *, most: int = MAX_PART) -> str:
    """Return the beginning of a text, as one line; text from a package may be very long."""
    return one_line(text if len(text) <= most else f"{text[:most]}…")


def one_line(text: str) -> str:
    """Return a text as one line; text from a package may contain line ends and terminal codes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def summary(error: BaseException) -> str:
    """Return the type and message of any error, as one line; those of a package may have none."""
    from traceback import format_exception_only

    return excerpt(" ".join("".join(format_exception_only(error)).split()))


def short(digest: str) -> str:
    """Return a digest in short form: ``sha256:`` and its first twelve digits."""
    return f"sha256:{digest[:12]}…" if digest else "none"
