"""What a home knows to be revoked: by digest where bytes were read, else by name and version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.version import Version as Number

from redhost.registry.errors import excerpt
from redhost.registry.home.questions import root_of
from redhost.registry.home.revoked import Revocation
from redhost.registry.home.store import Store
from redhost.registry.package.discover import canonical

from .schema import Version, number_of


@dataclass(frozen=True, kw_only=True)
class Revoked:
    """What is revoked and not allowed.

    Attributes:
        by_digest: Digest → its entry.
        by_name: Distribution and version → the entry that names them.
    """

    by_digest: Mapping[str, Revocation] = field(default_factory=dict)
    by_name: Mapping[tuple[str, Number], Revocation] = field(default_factory=dict)

    def reason(self, dist: str, version: str, *, digest: str = "") -> str | None:
        """Return why a version is revoked; None if it is not.

        Args:
            dist: Its distribution.
            version: Its version.
            digest: The digest of its content, which decides; empty if it is not known.
        """
        if digest:
            entry = self.by_digest.get(digest)
        elif not self.by_name:  # parsing the versions of an index takes as long as reading it
            return None
        else:
            entry = self.by_name.get((canonical(dist), number_of(version)))
        return None if entry is None else excerpt(entry.reason, most=300)

    def listed(self, version: Version) -> str | None:
        """Return why a version of a catalogue is revoked, by either; a catalogue may be wrong."""
        by_name = self.reason(version.dist, version.version)
        entry = self.by_digest.get(version.digest)
        return by_name if entry is None else excerpt(entry.reason, most=300)


def revoked_in(home: Path) -> Revoked:
    """Return what a home knows to be revoked.

    Raises:
        StoreError: If the file that names it cannot be read.
    """
    by_digest = Store(root_of(home)).revoked()
    named = {
        (canonical(entry.dist), number_of(entry.version)): entry
        for entry in by_digest.values()
        if entry.dist and entry.version
    }
    return Revoked(by_digest=by_digest, by_name=named)
