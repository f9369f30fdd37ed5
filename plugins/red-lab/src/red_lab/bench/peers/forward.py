"""Overhead over the plain forward pass, and memory: redhost's bus and PEFT, in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from red_lab.bench.peers import lora
from red_lab.bench.peers.model import (
    BATCHES,
    EXPERTS,
    Answers,
    Pass,
    compare,
    floor,
    load,
    token_ids,
)
from red_lab.bench.rounds import peak_bytes
from red_lab.cost_measure import Load, build_bus
from redhost import Bus

__all__ = ["APART", "SYSTEMS", "bus_alone", "measure", "memory", "redhost"]


def redhost(folder: Path, *, router: str = "evidence") -> Pass:
    """Return redhost's pass: the trunk, then the bus."""
    model = load(folder)
    bus = _bus(model, router)

    def run(ids: Tensor) -> Tensor:
        answer: Tensor = bus(_features(model, ids))[0]
        return answer

    return run


def bus_alone(folder: Path, *, router: str = "evidence") -> Pass:
    """Return the bus without the trunk, whose features of a batch are cached."""
    model, known = load(folder), {}
    bus = _bus(model, router)

    def run(ids: Tensor) -> Tensor:
        if len(ids) not in known:
            known[len(ids)] = _features(model, ids)
        answer: Tensor = bus(known[len(ids)])[0]
        return answer

    return run


def _features(model: Answers, ids: Tensor) -> Tensor:
    h: Tensor = model.model(input_ids=ids).last_hidden_state[:, -1]
    return h


def _bus(model: Answers, router: str) -> Bus:
    load_ = Load(config="", experts=EXPERTS)
    return build_bus(router, load_, width=int(model.config.hidden_size))


SYSTEMS: Mapping[str, Callable[[Path], Pass]] = {
    "floor": floor,
    "redhost": redhost,
    "peft one": lora.one,
    "peft five": lora.five,
    "peft mixed": lora.mixed,
    "peft merged": lora.merged,
    "x-lora": lora.xlora,
}

APART: Mapping[str, Callable[[Path], Pass]] = {
    "redhost bus": bus_alone,
    "redhost bus, linear": partial(bus_alone, router="linear"),
}


def measure(*, folder: str, rounds: int) -> dict[str, Any]:
    """Time all systems against the plain forward pass."""
    passes = {name: make(Path(folder)) for name, make in SYSTEMS.items()}
    plain = passes.pop("floor")
    apart = {name: make(Path(folder)) for name, make in APART.items()}
    return compare(plain, passes, token_ids(Path(folder)), rounds=rounds, apart=apart)


def memory(*, folder: str, system: str) -> dict[str, Any]:
    """Build one system and let it answer the largest batch; return the process's peak memory."""
    run = SYSTEMS[system](Path(folder))
    with torch.inference_mode():
        run(token_ids(Path(folder))[: max(BATCHES)])
    return {"peak_bytes": peak_bytes()}
