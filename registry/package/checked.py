"""What a check comes to: a value, or all that is wrong with it, raised only where it is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Generic, ParamSpec, TypeVar, cast

from ..errors import (
    BackboneMismatchError,
    CanaryError,
    CardError,
    ContractError,
    IntegrityError,
    ManifestError,
    RedhostError,
    one_line,
)

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")

_EXCEPTIONS: Mapping[str, type[RedhostError]] = {
    "backbone_mismatch": BackboneMismatchError,
    "canary_(power|values)": CanaryError,
    "card_(range|rows)": CardError,
    "manifest_.*": ManifestError,
    "(archive|record|signature)_.*": IntegrityError,
    ".*_(digest|missing|header|too_large|not_finite)": IntegrityError,
}
"""Codes, as regular expressions → the exception under which callers will look for them."""


@dataclass(frozen=True)
class Violation:
    """One broken promise.

    Attributes:
        code: A stable word that programs can test, e.g. ``weights_digest``.
        field: The manifest's field or the file that is wrong.
        expected: What the contract says.
        found: What is there.
        hint: What to do next.
    """

    code: str
    field: str
    expected: str
    found: str
    hint: str

    @property
    def reason(self) -> str:
        """The violation as one line."""
        return one_line(f"{self.field}: expected {self.expected}, found {self.found}")

    def error(self, who: str) -> RedhostError:
        """Return the violation as an exception that says who broke the promise."""
        kinds = (kind for codes, kind in _EXCEPTIONS.items() if re.fullmatch(codes, self.code))
        return next(kinds, ContractError)(
            f"{who}: {self.field}", expected=self.expected, found=self.found, hint=self.hint
        )


@dataclass(frozen=True)
class Checked(Generic[T]):
    """A value that passed its checks, or everything that is wrong with it.

    Attributes:
        value: What was checked; None exactly where there are violations.
        violations: All that is wrong; empty where nothing is.
    """

    value: T | None = None
    violations: tuple[Violation, ...] = ()

    def unwrap(self, who: str) -> T:
        """Return the value, for a caller that cannot go on without it.

        Raises:
            RedhostError: The first violation, as one of ``who``.
        """
        if self.violations:
            raise self.violations[0].error(who)
        return cast("T", self.value)

    def or_refuse(self) -> T:
        """Return the value, or leave the enclosing `checked` function with these violations."""
        refuse(self.violations)
        return cast("T", self.value)

    def then(self, check: Callable[[T], Checked[U]]) -> Checked[U]:
        """Check the value further, if there is one."""
        return Checked(None, self.violations) if self.violations else check(cast("T", self.value))


class Refused(Exception):  # noqa: N818  (no error yet: `checked` makes a value of it)
    """Carries violations from where they are seen to the `checked` function they end."""

    def __init__(self, *violations: Violation) -> None:
        super().__init__(*violations)
        self.violations = violations


def refuse(violations: Iterable[Violation]) -> None:
    """Leave the enclosing `checked` function if anything is wrong."""
    if wrong := tuple(violations):
        raise Refused(*wrong)


def checked(read: Callable[P, T]) -> Callable[P, Checked[T]]:
    """Make of a function that may refuse one that returns what came of it."""

    @wraps(read)
    def call(*args: P.args, **kwargs: P.kwargs) -> Checked[T]:
        try:
            return Checked(read(*args, **kwargs))
        except Refused as e:
            return Checked(None, e.violations)

    return call


def listed(names: Sequence[str]) -> str:
    """Return a few names as people read them."""
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"  # noqa: PLR2004
