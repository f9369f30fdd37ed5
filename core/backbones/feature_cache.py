"""The feature cache: features h are computed once and stored on disk.

The cache is keyed by content. The file name is derived from backbone fingerprint, device kind,
torch version, dtype, threads and kernels, each of which may change bits; a row's key is the sha256
of its text. SQLite allows sharing between processes and loses at most the rows being written when
a process is killed.

Each row has a digest over the file's name, the text's key and its bytes. A damaged row is computed
again, and so is a whole file that SQLite cannot read. A cache that cannot be written (another
user's home, a full disk) is used read-only; missing rows are computed each time.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...registry.atomic import count_damage, make_folder, remove_file
from ..types import Encode, Progress, as_list, in_stage
from .backbone import Backbone
from .encoder import BATCH

CHUNK = 256
"""Texts encoded between two writes and progress updates; an interruption loses at most these."""

SCHEMA = (
    "PRAGMA journal_mode=WAL",
    "CREATE TABLE IF NOT EXISTS rows (text BLOB PRIMARY KEY, row BLOB, digest BLOB)",
)

NO_FAULT_OF_THE_FILE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
    }
)
"""SQLite errors caused by the environment or by other processes; all others count as damage."""

log = logging.getLogger("redhost")

LOOKUP_CHUNK = 500
"""Rows in one query; every SQLite version supports 999 parameters."""


Compute = Callable[[Sequence[str]], Sequence[Tensor]]
"""Texts → the rows ``(T, width)`` of each."""


class FeatureCache:
    """A cache of h on disk, or of h̃ with a separate database for each segment.

    Args:
        folder: The folder of the databases; None disables the cache.
        backbone: The backbone that computes missing rows.
        fingerprint: The fingerprint of the backbone, already verified by the caller.
    """

    def __init__(self, folder: Path | None, *, backbone: Backbone, fingerprint: str) -> None:
        key = (
            fingerprint,
            torch.device(backbone.device).type,
            # Another torch may round its sums in another order.
            torch.__version__,
            "float32",
            # Sums split among threads are rounded in another order.
            torch.get_num_threads(),
            backbone.kernels,
        )
        self.backbone, width, unit = backbone, backbone.width, backbone.task.unit
        # Segments are computed from whole texts, of which a text's rows are one or many.
        each, chunk = partial(_rows_of_each, whole=unit.whole), CHUNK if unit.whole else BATCH
        segments = backbone.layout.segments if backbone.layout else ()
        sources: list[tuple[tuple[object, ...], int, Compute]] = [
            (key, width, partial(unit.states, backbone.trunk)),
            *(((*key, c.key), c.width, each(c.compute)) for c in segments if c.compute is not None),
        ]
        self.tables = [
            FeatureTable(folder, k, width=w, compute=compute, chunk=chunk)
            for k, w, compute in sources
        ]

    @property
    def path(self) -> Path | None:
        """The database of h; None without a folder."""
        return self.tables[0].path

    def encode(self, texts: str | Iterable[str], *, progress: Progress | None = None) -> Tensor:
        """Return h ``(N, D)`` of the texts, or h̃, computing only what is not cached.

        Args:
            texts: Any texts, repeated or not.
            progress: Called with (rows computed, rows to compute).

        Raises:
            InputTypeError: If `texts` is neither one text nor an iterable of texts.
        """
        texts = as_list(texts, str, "text")
        parts = [table.encode(texts, progress=progress) for table in self.tables]
        unit, layout, eps = self.backbone.task.unit, self.backbone.layout, self.backbone.eps
        if unit.whole:  # one row each, joined at once
            h = [self.tables[0].joined(parts[0])]
        else:
            states = [torch.tensor(rows) for rows in parts[0]]
            h = [unit.joined(states, layout, width=self.backbone.width, eps=eps)]
        h += (t.joined(p) for p, t in zip(parts[1:], self.tables[1:], strict=True))
        return h[0] if len(h) == 1 else torch.cat(h, dim=1)

    def missing(self, texts: Sequence[str]) -> list[str]:
        """Return the texts whose h is not cached, in the order in which it is computed."""
        # Segments follow from the texts as h does: what lacks h lacks the rest.
        cached = self.tables[0].read(texts)
        return _by_length(t for t in texts if t not in cached)

    def remember(self, texts: Sequence[str], h: np.ndarray) -> None:
        """Cache h ``(N, D)`` of texts: rows that were computed elsewhere, with the same bits."""
        self.tables[0].write(dict(zip(texts, h[:, None], strict=True)))


class FeatureTable:
    """Rows of one width, computed from texts and cached under one key."""

    def __init__(
        self,
        folder: Path | None,
        key: tuple[object, ...],
        *,
        width: int,
        compute: Compute,
        chunk: int,
    ) -> None:
        self.width, self.compute, self.chunk = width, compute, chunk
        name = hashlib.sha256("\0".join(map(str, key)).encode()).hexdigest()[:32]
        self.path = None if folder is None else folder / f"{name}.sqlite"

    def encode(self, texts: Sequence[str], *, progress: Progress | None = None) -> list[np.ndarray]:
        """Return the rows ``(T, width)`` of each text: a single row, or one for each token."""
        rows = self.read(texts)
        missing = _by_length(t for t in texts if t not in rows)
        progress = in_stage(progress, "features")
        for start in range(0, len(missing), self.chunk):
            chunk = missing[start : start + self.chunk]
            fresh = {t: h.numpy() for t, h in zip(chunk, self.compute(chunk), strict=True)}
            self.write(fresh)
            rows.update(fresh)
            if progress is not None:
                progress(start + len(chunk), len(missing))
        return [rows[t] for t in texts]

    def joined(self, parts: Sequence[np.ndarray]) -> Tensor:
        """Return the concatenated rows of several texts; an empty tensor for no texts."""
        return torch.from_numpy(np.concatenate(parts)) if parts else torch.empty(0, self.width)

    def read(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the cached rows, and delete damaged ones."""
        rows: dict[str, np.ndarray] = {}
        if self.path is None or not self.path.exists():
            return rows
        by_key, damaged = {_key(text): text for text in texts}, []
        with self._reporting(), self._connect() as database:
            for start in range(0, len(by_key), LOOKUP_CHUNK):
                keys = list(by_key)[start : start + LOOKUP_CHUNK]
                marks = ",".join("?" * len(keys))
                query = f"SELECT text, row, digest FROM rows WHERE text IN ({marks})"  # noqa: S608
                for key, row, digest in database.execute(query, keys):
                    # Over the name of the file as well: rows that were copied from another cache do
                    # not count.
                    if key in by_key and digest == self._digest(key, row):
                        # The width is not stored: a row of another file's width fails its digest
                        # before this.
                        row = np.frombuffer(row, np.float32)  # noqa: PLW2901
                        rows[by_key[key]] = row.reshape(-1, self.width)
                    else:
                        damaged.append(key)
            if damaged:
                count_damage(self.path.parent, len(damaged))
                database.executemany("DELETE FROM rows WHERE text IS ?", [(k,) for k in damaged])
        return rows

    def write(self, rows: dict[str, np.ndarray]) -> None:
        """Store rows, if the cache can be written."""
        if self.path is None:
            return
        data = {_key(text): row.astype(np.float32).tobytes() for text, row in rows.items()}
        with self._reporting(), self._connect() as database:
            database.executemany(
                "INSERT OR REPLACE INTO rows VALUES (?, ?, ?)",
                [(key, row, self._digest(key, row)) for key, row in data.items()],
            )

    def _digest(self, key: object, row: object) -> bytes | None:
        """Return the digest of a row of this file; None for values that are no valid row."""
        if self.path is None or not isinstance(key, bytes) or not isinstance(row, bytes):
            return None
        return hashlib.sha256(self.path.name.encode() + key + row).digest()

    @property
    def _can_write(self) -> bool:
        path = Path(self.path or "")
        return all(os.access(p, os.W_OK) for p in (path.parent, path) if p.exists())

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """Open the database for one transaction; read-only if it cannot be written."""
        path = Path(self.path or "")
        with suppress(OSError):
            make_folder(path.parent)
        # Immutable, because SQLite would otherwise write another file for shared access.
        uri = path.absolute().as_uri() + ("" if self._can_write else "?mode=ro&immutable=1")
        with closing(sqlite3.connect(uri, uri=True, timeout=60)) as database, database:
            # Damaged bytes need not be UTF-8, and must not raise before their digest is compared.
            database.text_factory = bytes
            for statement in SCHEMA if self._can_write else ():
                database.execute(statement)
            yield database

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        """Log failures of the cache and continue without it; delete a damaged file."""
        try:
            yield
        except (sqlite3.Error, OSError, MemoryError, UnicodeError) as e:  # all are seen with damage
            code = getattr(e, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
            if not self._can_write or isinstance(e, OSError) or code in NO_FAULT_OF_THE_FILE:
                log.warning("the feature cache %s cannot be used: %s", self.path, e)
                return
            log.warning("the feature cache %s is damaged and made anew: %s", self.path, e)
            with suppress(OSError):
                for suffix in ("-wal", "-shm", ""):  # a new file must not reuse this one's log
                    remove_file(Path(f"{self.path}{suffix}"))
                count_damage(Path(self.path or "").parent)


def _rows_of_each(compute: Callable[[Sequence[str]], Tensor], *, whole: bool) -> Compute:
    """Wrap a function that concatenates rows, one of each whole text: texts → the rows of each."""
    return lambda texts: (
        torch.split(compute(texts), 1) if whole else [compute([text]) for text in texts]
    )


def _by_length(texts: Iterable[str]) -> list[str]:
    """Return distinct texts sorted by length, so that batches have similar token lengths."""
    # Then by the text itself: passes, and what an interruption leaves, are the same each time.
    return sorted(set(texts), key=lambda t: (len(t), t))


def _key(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def cached_encode(
    backbone: Backbone, fingerprint: str, folder: Path | None, progress: Progress | None = None
) -> Encode:
    """Return texts → h through the feature cache."""
    return partial(
        FeatureCache(folder, backbone=backbone, fingerprint=fingerprint).encode, progress=progress
    )
