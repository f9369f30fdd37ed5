"""Router kinds: z → logits over the columns. One kind a file."""

from __future__ import annotations

from ..bus import BusConfig
from .attention import AttentionRouter
from .base import ColumnData, Judged, Router
from .blend import BlendRouter
from .causal import CausalMixtureRouter, CausalRouter
from .centroid import CentroidRouter
from .evidence import EvidenceRouter
from .linear import LinearRouter
from .mlp import MlpRouter
from .options import parse_kind, read_options
from .quadratic import QuadraticRouter
from .robust import RobustRouter
from .shortlist import ShortlistRouter
from .statistics import StatisticsRouter
from .topk import HardRouter, TopKRouter

__all__ = [
    "KINDS",
    "AttentionRouter",
    "BlendRouter",
    "CausalMixtureRouter",
    "CausalRouter",
    "CentroidRouter",
    "ColumnData",
    "EvidenceRouter",
    "HardRouter",
    "Judged",
    "LinearRouter",
    "MlpRouter",
    "QuadraticRouter",
    "RobustRouter",
    "Router",
    "ShortlistRouter",
    "StatisticsRouter",
    "TopKRouter",
    "build_router",
]

KINDS: tuple[type[Router], ...] = (
    AttentionRouter,
    BlendRouter,
    CausalMixtureRouter,
    CausalRouter,
    CentroidRouter,
    EvidenceRouter,
    HardRouter,
    LinearRouter,
    MlpRouter,
    QuadraticRouter,
    RobustRouter,
    ShortlistRouter,
    StatisticsRouter,
    TopKRouter,
)


def build_router(kind: str, bus: BusConfig, columns: tuple[str, ...], seed: int) -> Router | None:
    """Build an untrained router of a built-in kind; return None for a kind not known here.

    Args:
        kind: The kind, with options after a colon: ``topk:k=2,noise=0.1``.
        bus: What it is built for.
        columns: The columns' names.
        seed: Where random initial weights come from.

    Raises:
        UsageError: If the kind has no such option.
    """
    name, given = parse_kind(kind)
    for candidate in KINDS:
        if candidate.kind == name:
            options = read_options(name, given, candidate.options)
            return candidate(width=bus.heard, columns=columns, seed=seed, **options)
    return None
