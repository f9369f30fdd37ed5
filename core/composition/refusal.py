"""A refusal: why a composition, or one expert in it, is refused; a value until it is raised."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TypeVar

from msgspec import structs

from ...registry.errors import (
    CompositionError,
    ContractError,
    HarmError,
    HijackError,
    PluginError,
    RedhostError,
    UsageError,
    summary,
)
from ...registry.package.checked import Violation

T = TypeVar("T")


class Code(Enum):
    """What is refused."""

    CONTRACT = "contract"
    """A package breaks its contract, or its parts cannot be made."""
    SAME_ROWS = "same_rows"
    """An expert has the card and the labels of another."""
    NOT_COMPUTABLE = "not_computable"
    """Something cannot be computed."""
    HARM = "harm"
    """Something that worked would stop working (law 3)."""
    HIJACK = "hijack"
    """A newcomer brings what belongs to a member."""

    @property
    def is_harm(self) -> bool:
        """Whether the composition can be computed, and somebody would lose by it."""
        return self in {Code.HARM, Code.HIJACK}

    def error(self, otherwise: type[RedhostError]) -> type[RedhostError]:
        """Return the exception to raise: that of harm, or another."""
        return {Code.HARM: HarmError, Code.HIJACK: HijackError}.get(self, otherwise)


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why something is refused.

    Attributes:
        code: What is refused.
        violations: What is wrong; of a whole composition, the problem is the violation's field.
        expert: The expert at fault, by id or distribution; None for the whole composition.
        retry: Whether a composition under another router may be accepted.
        cause: The exception that it was found by, if there was one.
    """

    code: Code
    violations: tuple[Violation, ...]
    expert: str | None = None
    retry: bool = False
    cause: Exception | None = None

    def of(self, expert: str) -> Refusal:
        """Return the same as the fault of one expert."""
        first = self.violations[0]
        # What an exception says is about the package already; a gate's is about the composition.
        about = (
            first
            if self.cause
            else structs.replace(first, field="package", found=f"{first.field}: {first.found}")
        )
        return replace(self, expert=expert, violations=(about,))

    def error(self, *, hint: str | None = None) -> RedhostError:
        """Return the exception for a whole composition; the hint may be replaced."""
        if isinstance(self.cause, RedhostError):
            return self.cause
        first, kind = self.violations[0], self.code.error(CompositionError)
        if self.cause is not None:
            return kind(
                "the composition cannot be computed",
                found=first.found,
                hint="Nothing was changed. --debug shows where it happened.",
            )
        return kind(
            first.field,
            expected=first.expected,
            found=first.found,
            hint=first.hint if hint is None else hint,
        )


def accepted(outcome: T | Refusal) -> T:
    """Return what is not refused.

    Raises:
        RedhostError: The exception for a whole composition that is refused.
    """
    if isinstance(outcome, Refusal):
        raise outcome.error() from outcome.cause
    return outcome


def refusal_of(error: Exception) -> Refusal:
    """Return an error, raised while handling experts' material, as a refusal."""
    word, code = dict[type[Exception], tuple[str, Code]](
        {
            PluginError: ("form_unknown", Code.CONTRACT),
            CompositionError: ("not_computable", Code.NOT_COMPUTABLE),
            HarmError: ("harm", Code.HARM),
            HijackError: ("hijack", Code.HIJACK),
        }
    ).get(type(error), ("card_rows", Code.CONTRACT))
    if isinstance(error, RedhostError):
        expected, reason, hint = error.expected, error.reason, error.hint
    else:
        code, expected = Code.NOT_COMPUTABLE, "material that can be computed"
        word, reason = code.value, summary(error)
        hint = "Ask its author for a new build."
    violation = Violation(word, "package", expected or "a part that can be made", reason, hint)
    return Refusal(code=code, violations=(violation,), cause=error)


def is_about_material(error: Exception) -> bool:
    """Return whether an error, raised while handling one expert's material, is due to that expert.

    A full disk or an unreadable cache, for example, is not.
    """
    if isinstance(error, RedhostError):
        return isinstance(error, (ContractError, PluginError, UsageError))
    # The machine's faults would hit any expert: nobody is left out for them.
    return not isinstance(error, (OSError, MemoryError))
