"""A warm answer on SmolLM2-135M, step by step, with five random experts of rank 144.

The cost of an answer does not depend on the weights' values; trained experts on this backbone are
measured by `redhost lab red`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

import redhost
from red_lab.bench.models import in_memory
from red_lab.bench.profile_child import REST, Clock
from red_lab.red.run import open_source
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import LowRank
from redhost.core.routers import build_router

__all__ = ["warm_smollm2"]

EXPERTS, RANK, LABELS = 5, 144, 99


def warm_smollm2(
    steps: Mapping[str, Sequence[str]], *, question: str, runs: int, work: Path
) -> list[dict[str, float]]:
    """Answer a text several times; return the seconds by step of each run.

    Args:
        steps: Step → its functions.
        question: The text.
        runs: Number of runs.
        work: The lab's folder of files needed to open a backbone.
    """
    composed = _composed(open_source("smollm2", seed=0, work=work))
    composed.answer([question])
    clock, found = Clock(), []
    for step, places in steps.items():
        for place in places:
            clock.wrap(step, place)
    for _ in range(runs):
        clock.seconds.clear()
        with clock.step(REST):
            composed.answer([question])
        found.append(dict(clock.seconds))
    return found


def _composed(bare: redhost.Backbone) -> redhost.ComposedModel:
    width, generator = bare.width, torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return 0.02 * torch.randn(*shape, generator=generator)

    labels = tuple(map(str, range(LABELS)))
    experts = {
        f"expert{n}": LowRank(
            U=drawn(RANK, width), V=drawn(width, RANK), activation="gelu", space="hidden"
        )
        for n in range(EXPERTS)
    }
    config = redhost.BusConfig(width=width, labels=labels, eps=bare.eps)
    router = build_router("linear", config, tuple(sorted(experts)), 0)
    if router is None:
        raise redhost.UsageError("the host has no linear router")
    bus = redhost.Bus(
        Readout(classifier=drawn(LABELS, width), labels=labels),
        norm=LayerNorm(width=width, eps=bare.eps),
        router=router,
        experts=experts,
    )
    return in_memory(bare, bus, kind="linear")
