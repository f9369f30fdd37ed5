"""`--follow`: make current in the home what a fleet's store has in production.

The store's client belongs to redhost-fleet, which is imported only here and only if needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import redhost

if TYPE_CHECKING:
    from redhost_fleet.fleet import Fleet

__all__ = ["Production", "production_of"]


class Production:
    """The position of a home in the log of a fleet's production.

    Args:
        host: The home.
        fleet: The fleet.
    """

    def __init__(self, host: redhost.Host, fleet: Fleet) -> None:
        self.host, self.fleet = host, fleet
        self._seen: int | None = None
        self._revoked: bytes | None = None

    def look(self) -> None:
        """Download what is new in production, verified, and make it the home's current one.

        Raises:
            RedhostError: If that is not possible; the home's current generation stays.
        """
        from redhost_fleet.stages import PRODUCTION

        generations, log = self.host.generations, self.fleet.stages[PRODUCTION]
        self._revoked = self.fleet.pull_revoked(generations, seen=self._revoked)
        entry = log.last() if self._seen is None else log.after(self._seen)
        if entry is None or entry.generation is None:
            return
        record = self.fleet.pull(generations, entry.generation)
        if record.digest != entry.digest:
            raise redhost.errors.IntegrityError(
                f"generation {entry.generation} is not the one that was promoted",
                expected=entry.digest[:12],
                found=record.digest[:12],
                hint="Promote it again.",
            )
        if generations.current() != entry.generation:
            generations.rollback(entry.generation)
        self._seen = entry.sequence


def production_of(host: redhost.Host, store: str) -> Production:
    """Return what a home follows.

    Raises:
        SettingsError: If redhost-fleet is not installed, or cannot use the store.
    """
    try:
        from redhost_fleet.fleet import Fleet
    except ImportError as e:
        raise redhost.errors.SettingsError(
            f"cannot follow {store}",
            found=str(e),
            hint="Run: pip install 'redhost[fleet]'",
        ) from e
    return Production(host, Fleet(store))
