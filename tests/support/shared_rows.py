"""Texts are encoded once for all tests: a row is its text's own, whatever is encoded beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

__all__ = ["FOLDER", "in_folder", "in_memory", "install"]

FOLDER = "SHARED_ROWS"
"""The variable by which processes that tests start share a folder of rows."""

Rows = Callable[[Sequence[str], Callable[[Sequence[str]], list[Any]]], list[Any]]
"""From texts, and what computes the rows of some, to the rows of all."""


def install(patch: Callable[[Any, str, Any], None], rows: Callable[[Any, Any], Rows]) -> None:
    """Have every feature cache, and every check of experts, take what it lacks from `rows`.

    Args:
        patch: `setattr`, or that of a `MonkeyPatch`.
        rows: From a table of a cache and its key to what gives its rows.
    """
    from redhost.core.backbones import feature_cache
    from redhost.core.model import verify

    class Sharing(feature_cache.FeatureTable):
        def __init__(self, folder: Path | None, key: Any, *, compute: Any, **options: Any) -> None:
            super().__init__(folder, key, compute=compute, **options)
            shared = rows(self, key)
            self.compute = lambda texts: shared(texts, compute)

    def init(self: Any, backbone: Any, *, encode: Any) -> None:
        if encode == backbone.encode:
            encode = feature_cache.cached_encode(backbone, backbone.fingerprint(), None)
        real(self, backbone, encode=encode)

    real = verify.CachedBusEncoder.__init__
    patch(feature_cache, "FeatureTable", Sharing)
    patch(verify.CachedBusEncoder, "__init__", init)  # wherever it was imported by name


def in_memory(known: dict[Any, dict[str, Any]]) -> Callable[[Any, Any], Rows]:
    """Share rows within a process."""

    def of(_: Any, key: Any) -> Rows:
        rows = known.setdefault(key, {})

        def all_of(texts: Sequence[str], compute: Any) -> list[Any]:
            fresh = [t for t in dict.fromkeys(texts) if t not in rows]
            if fresh:
                rows.update(zip(fresh, compute(fresh), strict=True))
            return [rows[t] for t in texts]

        return all_of

    return of


def in_folder(folder: Path) -> Callable[[Any, Any], Rows]:
    """Share rows between processes."""
    from redhost.core.backbones.feature_cache import FeatureTable

    def of(table: Any, key: Any) -> Rows:
        def all_of(texts: Sequence[str], compute: Any) -> list[Any]:
            import torch

            shared = FeatureTable(
                folder, key, width=table.width, compute=compute, chunk=table.chunk
            )
            return [torch.from_numpy(row.copy()) for row in shared.encode(texts)]

        return all_of

    return of
