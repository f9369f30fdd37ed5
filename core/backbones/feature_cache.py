"""The feature cache: nothing below the bus is computed twice.

Keyed by content: backbone fingerprint, device kind, torch version, dtype, threads and the kind of
pass name the file (each may change bits); the text's sha256 names the row. SQLite, so that
a kill at any moment loses at most the rows being written and two processes can share it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...registry.errors import StoreError
from ..bus.tasks import Unit
from ..types import Encode, Progress
from .backbone import Backbone
from .encoder import BATCH
from .tiles import KERNELS
from .tokens import token_states, tokenize

CHUNK = 32 * BATCH
"""Texts encoded between two writes: what an interruption may lose."""

LOOKUP_CHUNK = 500
"""Rows of one query; SQLite takes 999 parameters at least."""


class FeatureCache:
    """h of texts, remembered on disk; where experts act inside, h̃, a database for each segment.

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
            KERNELS,
        )
        self.backbone, width = backbone, backbone.width
        if backbone.task.unit is Unit.TOKEN:
            self.tables = [
                _FeatureTable(
                    folder,
                    key,
                    width=width,
                    compute=partial(token_states, backbone.trunk),
                    count=lambda text: len(tokenize(backbone.trunk, text)),
                    chunk=CHUNK // BATCH,
                )
            ]
            return
        segments, encode = backbone.layout.segments if backbone.layout else (), backbone.encode
        sources = [
            (key, width, dataclasses.replace(backbone, layout=None).encode if segments else encode),
            *(((*key, c.key), c.width, c.compute) for c in segments if c.compute is not None),
        ]
        self.tables = [
            _FeatureTable(folder, k, width=w, compute=_one_each(compute))
            for k, w, compute in sources
        ]

    @property
    def path(self) -> Path | None:
        """Where h is remembered."""
        return self.tables[0].path

    def encode(self, texts: Sequence[str], *, progress: Progress | None = None) -> Tensor:
        """Return h ``(N, D)`` of the texts, or h̃, computing only what is not remembered.

        Args:
            texts: Any texts, repeated or not.
            progress: Called with (rows computed, rows to compute).
        """
        parts = [table.encode(texts, progress=progress) for table in self.tables]
        if self.backbone.task.unit is Unit.TOKEN:
            return self.backbone.token_rows(map(torch.tensor, parts[0]))
        rows = [
            torch.from_numpy(np.concatenate(p)) if p else torch.empty(0, t.width)
            for p, t in zip(parts, self.tables, strict=True)
        ]
        return rows[0] if len(rows) == 1 else torch.cat(rows, dim=1)

    def missing(self, texts: Sequence[str]) -> list[str]:
        """Return the texts whose h is not remembered, in the order in which it is computed."""
        known = self.tables[0].read(texts)
        return _by_length(t for t in texts if t not in known)

    def remember(self, texts: Sequence[str], h: np.ndarray) -> None:
        """Remember h ``(N, D)`` of texts: canonical rows that were computed elsewhere."""
        self.tables[0].write(dict(zip(texts, h[:, None], strict=True)))


class _FeatureTable:
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

    @contextmanager
    def _database(self, path: Path) -> Iterator[sqlite3.Connection]:
        """Open the database for one transaction.

        Raises:
            StoreError: If it cannot be used.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(path, timeout=60)) as database, database:
                database.execute("PRAGMA journal_mode=WAL")
                database.execute("CREATE TABLE IF NOT EXISTS h (text BLOB PRIMARY KEY, row BLOB)")
                yield database
        except (sqlite3.DatabaseError, OSError) as e:
            raise StoreError(
                f"the feature cache {path} cannot be used",
                found=str(e),
                hint="Check free space and permissions. Delete the file; its rows are computed "
                "again.",
            ) from e

    def read(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the rows that are remembered."""
        rows: dict[str, np.ndarray] = {}
        if self.path is None or not self.path.exists():
            return rows
        wanted = {_key(text): text for text in texts}
        with self._database(self.path) as database:
            for start in range(0, len(wanted), LOOKUP_CHUNK):
                some = list(wanted)[start : start + LOOKUP_CHUNK]
                marks = ",".join("?" * len(some))
                query = f"SELECT text, row FROM h WHERE text IN ({marks})"  # noqa: S608
                for key, row in database.execute(query, some):
                    text = wanted[key]
                    # A row of any other length was computed from something else.
                    if len(row) == 4 * self.width * self.count(text):
                        rows[text] = np.frombuffer(row, np.float32).reshape(-1, self.width)
        return rows

    def write(self, rows: dict[str, np.ndarray]) -> None:
        """Remember rows."""
        if self.path is not None:
            pairs = [(_key(t), row.astype(np.float32).tobytes()) for t, row in rows.items()]
            with self._database(self.path) as database:
                database.executemany("INSERT OR REPLACE INTO h VALUES (?, ?)", pairs)


def _one_each(compute: Callable[[Sequence[str]], Tensor]) -> Callable[..., Sequence[Tensor]]:
    """Return texts → a tensor ``(1, width)`` of each, for what gives one row for a text."""
    return lambda texts: torch.split(compute(texts), 1)


def _by_length(texts: Iterable[str]) -> list[str]:
    """Return distinct texts so that neighbours fill batches of equal token length."""
    return sorted(set(texts), key=lambda t: (len(t), t))


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def cached_encode(
    backbone: Backbone, fingerprint: str, folder: Path | None, progress: Progress | None = None
) -> Encode:
    """Return texts → h through the feature cache."""
    cache = FeatureCache(folder, backbone=backbone, fingerprint=fingerprint)
    return partial(cache.encode, progress=progress)
