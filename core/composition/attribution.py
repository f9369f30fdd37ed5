"""Find the newcomer that makes a composition impossible, and leave it out by name.

Each expert is first checked by itself (`candidates`). A joint step can still fail: a router that
cannot be solved, answers that are not finite, or a domain that would lose accuracy. The failure is
then attributed to the newcomer without which composing succeeds. Experts that were already composed
with each other are never suspected.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from ...registry.environment.status import PackageStatus
from ...registry.errors import CardError, CompositionError, HarmError, RedhostError
from .candidates import fault, is_about_material, same_rows
from .select import Selection

T = TypeVar("T")
log = logging.getLogger("redhost")


def compose_without_faulty(
    selection: Selection, attempt: Callable[[Selection], T], *, composed: Mapping[str, str]
) -> T:
    """Compose, and leave out newcomers that make the composition fail.

    Args:
        selection: The experts that may join.
        attempt: Composes a selection.
        composed: Expert id → digest of the experts that were already composed with each other.

    Raises:
        HarmError: If it can be computed, but a domain would lose and no newcomer is the cause.
        CompositionError: If it cannot be computed, and no newcomer is the cause.
    """
    while True:
        try:
            return attempt(selection)
        except Exception as e:
            if not _may_be_of_one(e):
                raise
            log.debug("a composition could not be computed", exc_info=True)
            culprit = _culprit(selection, attempt, composed)
            if culprit is None or (isinstance(e, HarmError) and culprit.id in composed):
                raise e if isinstance(e, RedhostError) else _nobodys(e) from e
            copied = same_rows(culprit, selection.statuses) if isinstance(e, HarmError) else None
            wrong = replace(culprit, violations=(copied or fault(e),))
            statuses = tuple(wrong if s is culprit else s for s in selection.statuses)
            selection = replace(selection, statuses=statuses)


def _may_be_of_one(error: Exception) -> bool:
    """Return whether an error of a joint step may have been caused by one expert's numbers."""
    if isinstance(error, RedhostError):
        return isinstance(error, (CardError, HarmError)) or type(error) is CompositionError
    return is_about_material(error)


def _culprit(
    selection: Selection, attempt: Callable[[Selection], object], composed: Mapping[str, str]
) -> PackageStatus | None:
    """Return the first newcomer that makes it fail; None if it fails without newcomers."""
    valid = [s for s in selection.statuses if s.id is not None and not s.violations]
    stay = [s for s in valid if composed.get(str(s.id)) == s.digest]
    suspects = [s for s in valid if s not in stay]

    def fails(count: int) -> bool:
        try:
            attempt(replace(selection, statuses=(*stay, *suspects[:count])))
        except Exception as e:
            return _may_be_of_one(e)
        return False

    if not suspects or (stay and fails(0)):
        return None
    low, high = 0, len(suspects)  # succeeds with `low` suspects, fails with `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return suspects[low]


def _nobodys(error: Exception) -> CompositionError:
    found = f"{type(error).__name__}: {error}"[:300]
    hint = "Nothing was changed. --debug shows where it happened."
    return CompositionError("the composition cannot be computed", found=found, hint=hint)
