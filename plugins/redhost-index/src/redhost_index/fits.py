"""Does a version of a catalogue fit a backbone, and why not, without computing anything."""

from __future__ import annotations

from msgspec import Struct

import redhost
from redhost.registry.errors import excerpt, short
from redhost.registry.package.rules import bus_violation

from .schema import Version


class Fit(Struct, frozen=True, kw_only=True):
    """Whether a version can be composed here.

    Attributes:
        fits: Whether it can; null if that is not known.
        why: Why not, or why it is not known.
        digest: The digest of its content, if that was read.
    """

    fits: bool | None
    why: str = ""
    digest: str = ""


def fit_of_entry(entry: Version, fingerprint: str) -> Fit:
    """Return whether a version of a catalogue fits the backbone of a fingerprint."""
    if entry.kind == "unreadable" or not entry.check.composable:
        if entry.check.redhost == redhost.__version__:
            return Fit(fits=False, why=excerpt(f"{entry.check.code}: {entry.check.reason}"))
        return Fit(fits=None, why=f"refused by redhost {entry.check.redhost}: {entry.check.code}")
    if not fingerprint:
        return Fit(fits=None, why="no backbone is chosen here")
    if entry.fingerprint != fingerprint:
        made_for = excerpt(f"{entry.backbone} ({short(entry.fingerprint)})")
        return Fit(fits=False, why=f"made for {made_for}, not for {short(fingerprint)}")
    if violations := bus_violation(entry.bus_api, "the expert"):
        return Fit(fits=False, why=f"{violations[0].code}: {violations[0].reason}")
    return Fit(fits=True)
