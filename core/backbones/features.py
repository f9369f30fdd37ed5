"""The feature cache: nothing below the bus is computed twice.

Keyed by content: backbone fingerprint, device kind, torch version, dtype, threads and canonical
batch size name the file (each may change bits); the text's sha256 names the row. SQLite, so that
a kill at any moment loses at most the rows being written and two processes can share it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...registry.errors import StoreError
from ..generate.spelling import spell
from ..generate.states import states, widen
from ..progress import Progress
from .backbone import Backbone
from .trunk import BATCH

__all__ = ["FeatureCache"]

CHUNK = 32 * BATCH
"""Texts encoded between two writes: what an interruption may lose."""

ASKED = 500
"""Rows that one query asks for; SQLite takes 999 at least."""


class FeatureCache:
    """h of texts, remembered on disk; where experts tap the trunk, h̃, a database for each chunk.

    Args:
        folder: Where the databases live; None keeps nothing.
        backbone: What computes the rows that are missing.
        fingerprint: The backbone's; the caller has just verified it.
    """

    def __init__(self, folder: Path | None, *, backbone: Backbone, fingerprint: str) -> None:
        key = (
            fingerprint,
            torch.device(backbone.device).type,
            torch.__version__,
            "float32",
            torch.get_num_threads(),
            BATCH,
        )
        self.backbone = backbone
        if backbone.generates:
            self.views = [
                _View(
                    folder,
                    key,
                    width=backbone.width,
                    compute=partial(states, backbone.trunk),
                    count=lambda text: len(spell(backbone.trunk, text)),
                    chunk=CHUNK // BATCH,
                )
            ]
            return
        chunks = backbone.layout.chunks if backbone.layout else ()
        bare = dataclasses.replace(backbone, layout=None) if chunks else backbone
        self.views = [
            _View(folder, key, width=backbone.width, compute=_one_each(bare.encode)),
            *(
                _View(folder, (*key, c.key), width=c.width, compute=_one_each(c.compute))
                for c in chunks
                if c.compute is not None
            ),
        ]

    @property
    def path(self) -> Path | None:
        """Where h is remembered."""
        return self.views[0].path

    def encode(self, texts: Sequence[str], *, progress: Progress | None = None) -> Tensor:
        """Return h ``(N, D)`` of the texts, or h̃, computing only what is not remembered.

        Args:
            texts: Any texts, repeated or not.
            progress: Called with (rows computed, rows to compute).
        """
        parts = [view.encode(texts, progress=progress) for view in self.views]
        if self.backbone.generates:
            wide = [
                widen(h, self.backbone.layout, eps=self.backbone.eps)
                for h in map(torch.tensor, parts[0])
            ]
            return torch.cat(wide) if wide else torch.empty(0, self.backbone.whole)
        rows = [
            torch.from_numpy(np.concatenate(p)) if p else torch.empty(0, v.width)
            for p, v in zip(parts, self.views, strict=True)
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def missing(self, texts: Sequence[str]) -> list[str]:
        """Return the texts whose h is not remembered, in the order in which it is computed."""
        known = self.views[0].read(texts)
        return _by_length(t for t in texts if t not in known)

    def remember(self, texts: Sequence[str], h: np.ndarray) -> None:
        """Remember h ``(N, D)`` of texts: canonical rows that were computed elsewhere."""
        self.views[0].write(dict(zip(texts, h[:, None], strict=True)))


class _View:
    """Rows of one width, computed from texts and remembered under one key."""

    def __init__(
        self,
        folder: Path | None,
        key: tuple[object, ...],
        *,
        width: int,
        compute: Callable[[Sequence[str]], Sequence[Tensor]],
        count: Callable[[str], int] = lambda _: 1,
        chunk: int = CHUNK,
    ) -> None:
        self.width, self.compute, self.count, self.chunk = width, compute, count, chunk
        name = hashlib.sha256("\0".join(map(str, key)).encode()).hexdigest()[:32]
        self.path = None if folder is None else folder / f"{name}.sqlite"

    def encode(self, texts: Sequence[str], *, progress: Progress | None = None) -> list[np.ndarray]:
        """Return the rows ``(T, width)`` of each text: one, or one for each token."""
        rows = self.read(texts)
        missing = _by_length(t for t in texts if t not in rows)
        for start in range(0, len(missing), self.chunk):
            chunk = missing[start : start + self.chunk]
            fresh = {t: h.numpy() for t, h in zip(chunk, self.compute(chunk), strict=True)}
            self.write(fresh)
            rows.update(fresh)
            if progress is not None:
                progress(start + len(chunk), len(missing))
        return [rows[t] for t in texts]

    def _open(self, path: Path) -> sqlite3.Connection:
        path.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(path, timeout=60)
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE IF NOT EXISTS h (text BLOB PRIMARY KEY, row BLOB)")
        return database

    def read(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the rows that are remembered."""
        if self.path is None or not self.path.exists():
            return {}
        rows: dict[str, np.ndarray] = {}
        try:
            with closing(self._open(self.path)) as database:
                wanted = {_key(text): text for text in texts}
                keys = list(wanted)
                for start in range(0, len(keys), ASKED):
                    some = keys[start : start + ASKED]
                    marks = ",".join("?" * len(some))
                    query = f"SELECT text, row FROM h WHERE text IN ({marks})"  # noqa: S608
                    for key, row in database.execute(query, some):
                        text = wanted[key]
                        if len(row) == 4 * self.width * self.count(text):
                            found = np.frombuffer(row, dtype=np.float32)
                            rows[text] = found.reshape(-1, self.width)
        except (sqlite3.DatabaseError, OSError) as e:
            raise self._broken(e) from e
        return rows

    def write(self, rows: dict[str, np.ndarray]) -> None:
        """Remember rows."""
        if self.path is None:
            return
        try:
            with closing(self._open(self.path)) as database, database:
                pairs = [(_key(t), row.astype(np.float32).tobytes()) for t, row in rows.items()]
                database.executemany("INSERT OR REPLACE INTO h VALUES (?, ?)", pairs)
        except (sqlite3.DatabaseError, OSError) as e:
            raise self._broken(e) from e

    def _broken(self, cause: Exception) -> StoreError:
        return StoreError(
            f"the feature cache {self.path} cannot be used",
            found=str(cause),
            hint="Check free space and permissions. Delete the file; its rows are computed again.",
        )


def _one_each(compute: Callable[[Sequence[str]], Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Return texts → a tensor ``(1, width)`` of each, for what gives one row for a text."""
    return lambda texts: torch.split(compute(texts), 1)


def _by_length(texts: Iterable[str]) -> list[str]:
    """Return distinct texts so that neighbours fill batches of equal token length."""
    return sorted(set(texts), key=lambda t: (len(t), t))


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
