"""The result of a check: a value, or all violations, which are raised only where needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Generic, ParamSpec, TypeVar, cast

from msgspec import Struct
from msgspec.structs import force_setattr

from ..errors import (
    BackboneMismatchError,
    CanaryError,
    CardError,
    ContractError,
    IntegrityError,
    ManifestError,
    RedhostError,
    excerpt,
)

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")

_TENSORS = ("weights", "files", "ported", "card", "canary", "base", "classifier", "delta", "dense")
_FILES = (*_TENSORS, "background", "evaluation")
# fmt: off
_KINDS: Mapping[type[RedhostError], Iterable[str]] = {
    IntegrityError: (
        "signature_missing", "signature_wrong",
        "archive_broken", "archive_data", "archive_duplicate", "archive_link", "archive_name",
        "archive_sdist", "archive_size", "archive_wheel",
        "record_absent", "record_digest", "record_missing", "record_outside", "record_row",
        "record_too_large", "record_unhashed", "record_unlisted",
        *(f"{file}_{what}" for file in _FILES for what in ("digest", "header", "missing")),
        *(f"{file}_too_large" for file in _FILES),
        *(f"{file}_not_finite" for file in _TENSORS),
    ),
    ManifestError: (
        "adapter_config", "base_config",
        "manifest_json", "manifest_field", "manifest_newer", "manifest_unknown_key",
    ),
    CardError: ("card_rows", "card_range"),
    CanaryError: ("canary_values", "canary_power"),
    BackboneMismatchError: ("backbone_mismatch",),
    ContractError: (
        "package_files", "installer_file", "startup_code", "data_scripts", "entry_points",
        "data_code", "foreign_top_level", "taken_top_level", "taken_name",
        "weights_tensors", "card_tensors", "canary_tensors", "classifier_tensors", "files_tensors",
        "bus_api", "width_mismatch", "causal_mismatch", "vocabulary_mismatch", "labels_unknown",
        "question_mismatch", "tap_order", "tap_unknown", "form_unknown", "task_unknown",
        "norm_bound", "off_domain",
        "disabled", "revoked", "duplicate_id", "same_rows", "digest", "strict",
        "metadata_row", "name_limit", "weights_range", "canary_range", "files_range",
        "ported_tensors", "ported_range", "ported_misfit",
        "adapter_misfit", "not_computable", "harm", "hijack",
    ),
}
# fmt: on

CODES: Mapping[str, type[RedhostError]] = {c: kind for kind, codes in _KINDS.items() for c in codes}
"""Every code of a violation → the exception that it is raised as."""


MAX_FIELD = 500
"""Most characters of each field of a violation."""


class Violation(Struct, frozen=True):
    """One broken promise.

    Attributes:
        code: A stable word that programs can test, one of `CODES`, e.g. ``weights_digest``.
        field: The manifest's field or the file that is wrong.
        expected: The value required by the contract.
        found: The value found.
        hint: What to do next.
    """

    code: str
    field: str
    expected: str
    found: str
    hint: str

    def __post_init__(self) -> None:
        """Escape text from the package, so that each field is one line that is safe to print."""
        if self.code not in CODES:
            raise ValueError(f"{self.code!r} is missing from CODES")
        for name in self.__struct_fields__:
            force_setattr(self, name, excerpt(getattr(self, name), most=MAX_FIELD))

    @property
    def reason(self) -> str:
        """The violation as one line."""
        return f"{self.field}: expected {self.expected}, found {self.found}"

    def error(self, subject: str) -> RedhostError:
        """Return the violation as an exception that names the package or part at fault."""
        return CODES[self.code](
            f"{subject}: {self.field}", expected=self.expected, found=self.found, hint=self.hint
        )


class Checked(Struct, Generic[T], frozen=True):
    """A value that passed its checks, or all violations.

    Attributes:
        value: The checked value; None exactly if there are violations.
        violations: All violations; empty if there are none.
    """

    value: T | None = None
    violations: tuple[Violation, ...] = ()

    def unwrap(self, subject: str) -> T:
        """Return the value, for a caller that cannot continue without it.

        Raises:
            RedhostError: The first violation, with ``subject`` as the one at fault.
        """
        if self.violations:
            raise self.violations[0].error(subject)
        return cast("T", self.value)

    def or_refuse(self) -> T:
        """Return the value, or leave the enclosing `checked` function with these violations."""
        refuse(self.violations)
        return cast("T", self.value)

    def then(self, check: Callable[[T], Checked[U]]) -> Checked[U]:
        """Check the value further, if there is one."""
        return Checked(None, self.violations) if self.violations else check(cast("T", self.value))


class Refused(ContractError):  # noqa: N818  (rarely an error: it becomes a value)
    """Carries violations to what turns them into values, such as the enclosing `checked` function.

    Where nothing does, it is the error of the first.
    """

    def __init__(self, *violations: Violation) -> None:
        first = violations[0]
        super().__init__(first.field, expected=first.expected, found=first.found, hint=first.hint)
        self.violations = violations


def violations_in(error: RedhostError, *, code: str, field: str) -> tuple[Violation, ...]:
    """Return the violations that an error carries; else itself as one of a code."""
    if isinstance(error, Refused):
        return error.violations
    expected, found = error.expected or "no error", error.found or error.problem
    return (Violation(code, field, expected, found, error.hint),)


def refuse(violations: Iterable[Violation]) -> None:
    """Leave the enclosing `checked` function if there is any violation."""
    if collected := tuple(violations):
        raise Refused(*collected)


def checked(read: Callable[P, T]) -> Callable[P, Checked[T]]:
    """Turn a function that may raise `Refused` into one that returns a `Checked` result.

    It reads what others wrote. Any exception other than a `RedhostError` is therefore a violation
    too: a package that breaks its own check never stops a command that does not need it.
    """

    @wraps(read)
    def call(*args: P.args, **kwargs: P.kwargs) -> Checked[T]:
        try:
            return Checked(read(*args, **kwargs))
        except Refused as e:
            return Checked(None, e.violations)
        except RedhostError:
            raise
        except Exception as e:
            hint = "Ask its author for a new build."
            fault = f"{type(e).__name__}: {e}"
            return Checked(
                None,
                (Violation("not_computable", "package", "contents that can be read", fault, hint),),
            )

    return call


def violations_of(check: Callable[P, Iterable[Violation]]) -> Callable[P, tuple[Violation, ...]]:
    """Turn a function that yields violations into one that returns them, as `checked` does."""

    @wraps(check)
    def call(*args: P.args, **kwargs: P.kwargs) -> tuple[Violation, ...]:
        return checked(lambda: refuse(check(*args, **kwargs)))().violations

    return call


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON, for ``object_pairs_hook``.

    Raises:
        ValueError: If a key stands twice in it.
    """
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"the key {key[:80]!r} stands twice")
        values[key] = value
    return values


def listed(names: Sequence[str]) -> str:
    """Return a few names as a readable list."""
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"  # noqa: PLR2004
