"""Whose fault it is that a composition cannot be computed: the newcomer is left out, by name.

Each expert is checked by itself before anything is joint (`candidates`). What still goes wrong in
a joint step, with a router that cannot be solved, answers that are no numbers or a domain that
would lose, is put to the one without whom it goes right. Those that answer together already are
never suspected.
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
    """Compose, and leave out experts with which that cannot be computed.

    Args:
        selection: Who may join.
        attempt: Composes a selection.
        composed: Expert id → digest of those that answer together already.

    Raises:
        HarmError: If it can, and a domain would lose by something else than a newcomer.
        CompositionError: If it cannot be computed, and that is no newcomer's fault.
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
    """Tell whether an error of a joint step may come from one expert's numbers."""
    if isinstance(error, RedhostError):
        return isinstance(error, (CardError, HarmError)) or type(error) is CompositionError
    return is_about_material(error)


def _culprit(
    selection: Selection, attempt: Callable[[Selection], object], composed: Mapping[str, str]
) -> PackageStatus | None:
    """Return the first newcomer with whom it goes wrong; None where it does without any."""
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
    low, high = 0, len(suspects)  # with so many it goes right, and wrong
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return suspects[low]


def _nobodys(error: Exception) -> CompositionError:
    found = f"{type(error).__name__}: {error}"[:300]
    hint = "Nothing was changed. --debug shows where it happened."
    return CompositionError("the composition cannot be computed", found=found, hint=hint)
