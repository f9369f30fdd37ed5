"""Find the newcomer that makes a composition impossible, and leave it out by name.

Each expert is first checked by itself (`prepare`). A joint step can still fail: a router that
cannot be solved, answers that are not finite, or a domain that would lose accuracy. The refusal is
then attributed to the newcomer without which composing succeeds. Experts that were already composed
with each other are never suspected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from msgspec import structs

from ...registry.environment.status import PackageStatus
from ...registry.errors import CardError, CompositionError, HarmError, RedhostError
from .prepare import same_rows
from .refusal import Refusal, is_about_material, refusal_of
from .select import Selection

T = TypeVar("T")
log = logging.getLogger("redhost")


def compose_without_faulty(
    selection: Selection,
    attempt: Callable[[Selection], T | Refusal],
    *,
    composed: Mapping[str, str],
) -> T | Refusal:
    """Compose, and leave out newcomers that make the composition fail.

    Args:
        selection: The experts that may join.
        attempt: Composes a selection.
        composed: Expert id → digest of the experts that were already composed with each other.

    Returns:
        The composition; a refusal if no newcomer is its cause.
    """
    # Each round leaves out one newcomer, so at the latest the members alone end it.
    while True:
        outcome = _attempted(attempt, selection)
        if not isinstance(outcome, Refusal):
            return outcome
        culprit = _culprit(selection, attempt, composed)
        if culprit is None or (outcome.code.is_harm and culprit.id in composed):
            return outcome
        # A copy of a member's card takes its rows, which looks like harm: name it a copy.
        others = selection.statuses if outcome.code.is_harm else ()
        refusal = same_rows(culprit, others) or outcome.of(str(culprit.id))
        blamed = structs.replace(culprit, violations=refusal.violations)
        selection = replace(
            selection,
            statuses=tuple(blamed if s is culprit else s for s in selection.statuses),
            refused={**selection.refused, str(culprit.id): refusal},
        )


def _attempted(attempt: Callable[[Selection], T | Refusal], selection: Selection) -> T | Refusal:
    """Attempt a composition; an error that one expert's numbers may have caused is a refusal."""
    try:
        return attempt(selection)
    except Exception as e:
        if not _may_be_of_one(e):
            raise
        log.debug("a composition could not be computed", exc_info=True)
        return refusal_of(e)


def _may_be_of_one(error: Exception) -> bool:
    """Return whether an error of a joint step may have been caused by one expert's numbers."""
    if isinstance(error, RedhostError):
        return isinstance(error, (CardError, HarmError)) or type(error) is CompositionError
    return is_about_material(error)


def _culprit(
    selection: Selection,
    attempt: Callable[[Selection], object],
    composed: Mapping[str, str],
) -> PackageStatus | None:
    """Return the first newcomer that makes it fail; None if it fails without newcomers."""
    valid = [s for s in selection.statuses if s.id is not None and not s.violations]
    # By digest: a member's new build may bring another card, and is a suspect like any newcomer.
    stay = [s for s in valid if composed.get(str(s.id)) == s.digest]
    suspects = [s for s in valid if s not in stay]

    def fails(count: int) -> bool:
        return isinstance(
            _attempted(attempt, replace(selection, statuses=(*stay, *suspects[:count]))), Refusal
        )

    # Where the members alone fail, nobody who joins is to blame.
    if not suspects or (stay and fails(0)):
        return None
    # Each attempt is a whole composition: bisecting takes log₂ of them, not one for each suspect.
    low, high = 0, len(suspects)  # succeeds with `low` suspects, fails with `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return suspects[low]
