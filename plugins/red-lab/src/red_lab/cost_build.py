"""Make a random backbone of full size, and a bus on top of it.

Legend for shapes: B batch, T tokens, D model width, N queries, R rank, K columns, C labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import LowRank
from redhost.core.routers import build_router
from redhost.core.routers.domain_statistics import Statistics

__all__ = ["CLASSES", "ROUTERS", "Load", "build_bus", "make_trunk", "rank_of"]

CLASSES = 99
"""C of the seed's additions: the sums 2 to 100."""

ROUTERS = ("evidence", "statistics", "centroid", "linear", "mlp")
"""Kinds of routers that are counted and timed; the first is the host's default."""

ROWS_A_LABEL = 4
SMOLLM2 = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
QWEN3 = {
    "vocab_size": 151936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}


@dataclass(frozen=True, kw_only=True)
class Load:
    """The settings of a measurement.

    Attributes:
        config: ``qwen3-0.6b``, ``smollm2-135m`` or ``tiny``.
        experts: Number of experts, all of the residual form in hidden space.
        rank: R of each; None is a quarter of D.
        device: ``cpu`` or ``cuda``.
        queries: N, in batches of `batch`.
        batch: B.
        rounds: Timed rounds, after one warm-up round.
    """

    config: str
    experts: int = 5
    rank: int | None = None
    device: str = "cpu"
    queries: int = 64
    batch: int = 8
    rounds: int = 5


def make_trunk(config: str) -> Any:
    """Return a frozen encoder of a shape, with random weights."""
    from transformers import AutoModel, LlamaConfig, Qwen3Config

    from red_lab.tiny_model import Shape, make_model

    if config == "tiny":
        model: Any = make_model(Shape(), seed=0).encoder
    else:
        shapes = {"qwen3-0.6b": (Qwen3Config, QWEN3), "smollm2-135m": (LlamaConfig, SMOLLM2)}
        make, options = shapes[config]
        auto: Any = AutoModel
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = auto.from_config(make(**options, use_cache=False), dtype=torch.float32)
    return model.eval().requires_grad_(False)


def build_bus(kind: str, load: Load, *, width: int) -> redhost.Bus:
    """Return a bus of random experts with a router trained on random rows."""
    generator = torch.Generator().manual_seed(0)
    rank, labels = rank_of(load, width), tuple(str(2 + n) for n in range(CLASSES))
    ids = tuple(f"expert{n}" for n in range(load.experts))
    experts = {
        name: LowRank(
            U=torch.randn(rank, width, generator=generator) / width**0.5,
            V=torch.randn(width, rank, generator=generator) / rank**0.5,
            activation="gelu",
            space="hidden",
            labels=labels[n :: load.experts],
        )
        for n, name in enumerate(ids)
    }
    bus = redhost.Bus(
        Readout(
            classifier=torch.randn(CLASSES, width, generator=generator) / width**0.5, labels=labels
        ),
        norm=LayerNorm(width=width, eps=1e-5),
        router=_router(kind, experts, labels, width=width),
        experts=experts,
        backbone_column=True,
    )
    return bus.eval().requires_grad_(False)


def _router(
    kind: str, experts: Mapping[str, LowRank], labels: Sequence[str], *, width: int
) -> redhost.Router:
    columns = (*experts, "backbone")
    config = redhost.BusConfig(width=width, labels=tuple(labels))
    router = build_router(kind, config, columns, 0)
    if router is None:
        raise redhost.UsageError("unknown router", expected=", ".join(ROUTERS), found=kind)
    if router.closed_form:
        answers = {**{i: e.labels for i, e in experts.items()}, "backbone": ("",)}
        router.solve([_column(n, columns, answers[c], width=width) for n, c in enumerate(columns)])
    return router


def _column(
    n: int, columns: Sequence[str], labels: Sequence[str], *, width: int
) -> redhost.plugins.ColumnData:
    """Return random rows of a column; a router's shape depends only on the number of labels."""
    answers = [y for y in labels for _ in range(ROWS_A_LABEL)]
    z = torch.randn(len(answers), width, generator=torch.Generator().manual_seed(n))
    return redhost.plugins.ColumnData(
        column=columns[n],
        z=z,
        statistics=Statistics.of_rows(z, answers),
        signals=redhost.plugins.RouterSignals(z, values={"confidences": z[:, : len(columns)]}),
    )


def rank_of(load: Load, width: int) -> int:
    """Return R, or a quarter of D if none is given."""
    return load.rank or max(1, width // 4)
