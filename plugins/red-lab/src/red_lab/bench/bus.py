"""Section `bus`: the overhead of experts and router over a backbone's forward pass.

Backbone and bus are timed separately and in turn; a share is the ratio of their medians. The
experts' weights are random, since times depend on shapes alone; texts and backbones are real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import redhost
from red_lab.bench.bus_page import draw, page
from red_lab.bench.rounds import in_turns, share, spread
from red_lab.bench.section import SectionSettings
from red_lab.bench.trunks import TRUNKS, open_trunk, token_ids
from red_lab.cost_build import Load, build_bus, rank_of
from redhost.core.model.build import make_router

__all__ = ["TITLE", "draw", "measure", "measure_on", "page", "tensor_bytes"]

TITLE = "Overhead of the bus in a forward pass"

BATCHES = (1, 8, 64)
DENSE = (("evidence", 5), ("linear", 5))
SPARSE = tuple(
    (kind, experts) for kind in ("topk:k=2", "shortlist:k=2") for experts in (1, 10, 100, 1000)
)
MOST_RUNS = 3
"""Small batches are quick, so they get this many times the rounds of the largest."""


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Time the buses on every backbone."""
    found = {
        name: measure_on(open_trunk(name), buses=DENSE + SPARSE, rounds=settings.runs)
        for name in TRUNKS
    }
    return {"runs": settings.runs, "threads": torch.get_num_threads(), "backbones": found}


def measure_on(
    trunk: redhost.authoring.TextEncoder,
    *,
    buses: Sequence[tuple[str, int]],
    rounds: int,
    batches: Sequence[int] = BATCHES,
) -> dict[str, Any]:
    """Time buses on one backbone.

    Args:
        trunk: The backbone.
        buses: Kind of router and number of experts of each bus.
        rounds: Measured rounds, for the largest batch.
        batches: Rows of a pass.

    Returns:
        A row for every bus and batch.
    """
    ids = token_ids(trunk, max(batches))
    load = Load(config="", experts=0)
    made = {
        (kind, experts): _bus(kind, replace(load, experts=experts), width=trunk.width)
        for kind, experts in buses
    }
    rows = []
    for batch in batches:
        times = MOST_RUNS if batch < max(batches) else 1
        rows += [
            {"batch": batch, **row}
            for row in _timed(trunk, ids[:batch], made, rounds=times * rounds)
        ]
    return {
        "width": trunk.width,
        "rank": rank_of(load, trunk.width),
        "tokens": int(ids.shape[1]),
        "rows": rows,
    }


def _timed(
    trunk: redhost.authoring.TextEncoder,
    ids: Tensor,
    buses: Mapping[tuple[str, int], redhost.Bus],
    *,
    rounds: int,
) -> list[dict[str, Any]]:
    """Return one row for every bus on one batch."""

    def forward() -> Tensor:
        return trunk.hidden_states(ids)[:, -1]

    with torch.inference_mode():
        h = forward()
        systems = {f"{kind} {n}": partial(bus, h) for (kind, n), bus in buses.items()}
        seconds = in_turns({"backbone": forward, **systems}, rounds=rounds)
    backbone = seconds["backbone"]
    return [
        {
            "router": kind,
            "experts": n,
            "bytes": tensor_bytes(bus),
            "rounds": rounds,
            "backbone_seconds": spread(backbone),
            "bus_seconds": spread(seconds[f"{kind} {n}"]),
            "share": share(seconds[f"{kind} {n}"], backbone),
        }
        for (kind, n), bus in buses.items()
    ]


def _bus(kind: str, load: Load, *, width: int) -> redhost.Bus:
    """Return a bus; a sparse router gets random weights, so that rows use many experts."""
    if kind in dict(DENSE):
        return build_bus(kind, load, width=width)
    bus = build_bus("topk:k=2", load, width=width)  # which makes no copy of the experts
    config = redhost.BusConfig(width=width, labels=bus.shared_labels)
    plugins = redhost.plugins.Plugins()
    router = make_router(
        kind, bus=config, columns=bus.columns, seed=0, plugins=plugins, providers={}
    )
    generator = torch.Generator().manual_seed(0)
    for name, parameter in router.named_parameters():
        if name in {"weight", "bias"}:  # the rest of a shortlist reads confidences, starts at zero
            nn.init.normal_(parameter, generator=generator)
    made = redhost.Bus(
        bus.readout,
        norm=bus.norm,
        router=router,
        experts=dict(zip(bus.ids, bus.parts(), strict=True)),
        backbone_column=True,
    )
    return made.eval().requires_grad_(False)


def tensor_bytes(module: nn.Module) -> int:
    """Return the bytes of parameters and buffers; shared ones are counted once."""
    tensors = (*module.parameters(), *module.buffers())
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in tensors}
    return sum(s.nbytes() for s in storages.values())
