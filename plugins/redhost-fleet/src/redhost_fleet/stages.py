"""A stage's log: its last entry names the served generation; entries are never changed.

Entry n + 1 is created only if it does not exist. So if two writers have both seen entry n, one
succeeds and the other gets an error that names the first: one conditional write is both the
compare-and-set and the history.
"""

from __future__ import annotations

import re
import secrets

import msgspec

import redhost
from redhost_fleet.documents import StageEntry, decode, encode
from redhost_fleet.storage import Storage

__all__ = ["CANARY", "PRODUCTION", "STAGES", "StageLog"]

PRODUCTION, CANARY = "production", "canary"
STAGES = (PRODUCTION, CANARY)

_ENTRY = re.compile(r"([0-9]{8,18})\.json")


class StageLog:
    """The log of one stage.

    Args:
        storage: The fleet's store.
        stage: Its name.
    """

    def __init__(self, storage: Storage, stage: str) -> None:
        self.storage, self.stage = storage, stage
        self.folder = f"stages/{stage}"

    def last(self) -> StageEntry | None:
        """Return the last entry, None before the first.

        Raises:
            StoreError: If the store cannot be reached, or the entry cannot be decoded.
        """
        numbers = self.sequences()
        return self.read(numbers[-1]) if numbers else None

    def sequences(self) -> list[int]:
        """Return the numbers of all entries, ascending."""
        found = map(_ENTRY.fullmatch, self.storage.names(self.folder))
        return sorted(int(match[1]) for match in found if match)

    def read(self, sequence: int) -> StageEntry | None:
        """Return an entry; None if it does not exist."""
        data = self.storage.read(self._name(sequence))
        if data is None:
            return None
        where = f"{self.storage.url}/{self._name(sequence)}"
        entry = decode(data, StageEntry, where=where)
        if entry.sequence != sequence:
            raise redhost.errors.StoreError(
                f"{where} is damaged", expected=f"entry {sequence}", found=f"entry {entry.sequence}"
            )
        return entry

    def after(self, sequence: int) -> StageEntry | None:
        """Return the last entry later than a given one, or None; costs one read per entry."""
        newest = None
        while (entry := self.read(sequence + 1)) is not None:
            newest, sequence = entry, entry.sequence
        return newest

    def append(self, entry: StageEntry, *, after: StageEntry | None) -> StageEntry:
        """Append an entry, if the given one is still the last.

        Args:
            entry: The entry; its sequence and token are filled in here.
            after: The last entry that the caller has seen.

        Returns:
            The entry as written.

        Raises:
            StaleGenerationError: If another writer was first; the message names it.
            StoreError: If the store cannot be reached.
        """
        sequence = 1 if after is None else after.sequence + 1
        sealed = msgspec.structs.replace(entry, sequence=sequence, token=secrets.token_hex(8))
        if self.storage.create(self._name(sequence), encode(sealed)):
            return sealed
        winner = self.read(sequence)
        expected = "nothing" if after is None else _describe(after)
        raise redhost.errors.StaleGenerationError(
            f"another writer moved {self.stage} of {self.storage.url} first",
            expected=expected,
            found="another entry" if winner is None else _describe(winner),
            hint="See 'redhost fleet history', then decide again.",
        )

    def _name(self, sequence: int) -> str:
        return f"{self.folder}/{sequence:08}.json"


def _describe(entry: StageEntry) -> str:
    what = "none" if entry.generation is None else f"generation {entry.generation}"
    return f"{what}, by {entry.by} at {entry.when}"
