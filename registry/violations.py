"""One broken promise, as a value: nothing is raised until a command needs the package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .errors import (
    BackboneMismatchError,
    CanaryError,
    CardError,
    ContractError,
    IntegrityError,
    ManifestError,
    RedhostError,
    one_line,
)

__all__ = ["Violation", "listed"]


@dataclass(frozen=True)
class Violation:
    """What a check found.

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
        return _exception(self.code)(
            f"{who}: {self.field}", expected=self.expected, found=self.found, hint=self.hint
        )


def listed(names: Sequence[str]) -> str:
    """Return a few names as people read them."""
    shown = ", ".join(repr(name) for name in names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"  # noqa: PLR2004


_ABOUT_BYTES = ("archive_", "record_", "signature_")
_OF_BYTES = ("_digest", "_missing", "_header", "_too_large", "_not_finite")


def _exception(code: str) -> type[RedhostError]:
    """Return the class of the tree under which callers will look for this code."""
    match code:
        case "backbone_mismatch":
            return BackboneMismatchError
        case "canary_values":
            return CanaryError
        case "card_rows":
            return CardError
        case _ if code.startswith("manifest_"):
            return ManifestError
        case _ if code.startswith(_ABOUT_BYTES) or code.endswith(_OF_BYTES):
            return IntegrityError
        case _:
            return ContractError
