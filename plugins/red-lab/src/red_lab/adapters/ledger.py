"""Measured bits, cached in a file, so that a repeated or resumed run does not recompute them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from red_lab.adapters.judge import Judge, Read
from red_lab.adapters.study import Excerpt

__all__ = ["Ledger"]

EVERY = 25
"""Measurements between two writes."""


class Ledger:
    """The bits of excerpts under named models.

    Args:
        folder: The folder of the cache, which has one file for these excerpts.
        judge: Computes the bits.
        excerpts: The excerpts to measure.
        models: Name → factory of a reader.
    """

    def __init__(
        self,
        folder: Path,
        *,
        judge: Judge,
        excerpts: Sequence[Excerpt],
        models: Mapping[str, Callable[[], Read]],
    ) -> None:
        digest = hashlib.sha256(json.dumps([e.ids for e in excerpts]).encode()).hexdigest()
        self.file = folder / f"{digest[:12]}.json"
        self.judge, self.excerpts, self.models = judge, excerpts, models
        self._made: tuple[str, Read] | None = None

    @cached_property
    def known(self) -> dict[str, dict[str, float]]:
        """Model → excerpt's number → bits."""
        if not self.file.exists():
            return {}
        found: dict[str, dict[str, float]] = json.loads(self.file.read_text("utf-8"))
        return found

    def bits(self, names: Sequence[str]) -> list[float]:
        """Return each excerpt's bits under the model named at its index."""
        order = sorted(range(len(names)), key=lambda n: names[n])  # one model after the other
        missing = [n for n in order if str(n) not in self.known.get(names[n], {})]
        for count, n in enumerate(missing, 1):
            self.known.setdefault(names[n], {})[str(n)] = self.judge.bits(
                self.excerpts[n], self._read(names[n])
            )
            if count % EVERY == 0 or count == len(missing):
                self._write()
        return [self.known[name][str(n)] for n, name in enumerate(names)]

    def _read(self, name: str) -> Read:
        if self._made is None or self._made[0] != name:
            self._made = name, self.models[name]()
        return self._made[1]

    def _write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.known), "utf-8")
        part.replace(self.file)
