"""Router kinds: z → logits over the columns. One kind a file."""

from __future__ import annotations

from ..bus import BusConfig
from .base import ColumnData, Router
from .centroid import CentroidRouter
from .evidence import EvidenceRouter
from .linear import LinearRouter
from .mlp import MlpRouter
from .quadratic import QuadraticRouter
from .statistics import StatisticsRouter

__all__ = [
    "KINDS",
    "CentroidRouter",
    "ColumnData",
    "EvidenceRouter",
    "LinearRouter",
    "MlpRouter",
    "QuadraticRouter",
    "Router",
    "StatisticsRouter",
    "build_router",
]

KINDS: tuple[type[Router], ...] = (
    CentroidRouter,
    EvidenceRouter,
    LinearRouter,
    MlpRouter,
    QuadraticRouter,
    StatisticsRouter,
)


def build_router(kind: str, bus: BusConfig, columns: tuple[str, ...], seed: int) -> Router | None:
    """Build an untrained router of a built-in kind; return None for a kind not known here."""
    for candidate in KINDS:
        if candidate.kind == kind:
            return candidate(width=bus.width, columns=columns, seed=seed)
    return None
