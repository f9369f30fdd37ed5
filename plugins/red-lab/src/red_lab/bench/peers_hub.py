"""AdapterHub: five bottleneck adapters, fused or averaged. Runs in its own environment."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from red_lab.bench.peers_model import (
    EXPERTS,
    Answers,
    Pass,
    compare,
    floor,
    load,
    peak_memory,
    token_ids,
)

__all__ = ["SYSTEMS", "measure", "memory"]


def _five(folder: Path, *, combine: str) -> Pass:
    model = _model(folder)
    trunk, names = model.model, [str(n) for n in range(EXPERTS)]
    composition: Any = importlib.import_module("adapters.composition")
    setup = getattr(composition, combine)(*names)
    if combine == "Fuse":
        trunk.add_adapter_fusion(setup)
    trunk.set_active_adapters(setup)
    model.eval().requires_grad_(False)
    return lambda ids: model(input_ids=ids).logits


SYSTEMS: Mapping[str, Callable[[Path], Pass]] = {
    "floor": floor,
    "adapters fuse": partial(_five, combine="Fuse"),
    "adapters average": partial(_five, combine="Average"),
}


def measure(*, folder: str, rounds: int) -> dict[str, Any]:
    """Time fusion and averaging against the plain forward pass."""
    passes = {name: make(Path(folder)) for name, make in SYSTEMS.items()}
    versions = {n: metadata.version(n) for n in ("adapters", "torch", "transformers")}
    plain = passes.pop("floor")
    results = compare(plain, passes, token_ids(Path(folder)), rounds=rounds)
    return {**results, "versions": versions}


memory = partial(peak_memory, SYSTEMS)


def _model(folder: Path) -> Answers:
    """Return the folder's model with random bottleneck adapters of an expert's size."""
    adapters: Any = importlib.import_module("adapters")
    model = load(folder)
    trunk, width = model.model, int(model.config.hidden_size)
    adapters.init(trunk)
    # An expert of rank D/4 has D²/2 parameters; a bottleneck of d has 2·D·d in every block.
    inner = max(1, round(width / 4 / int(model.config.num_hidden_layers)))
    settings = adapters.SeqBnConfig(reduction_factor=width / inner)
    torch.manual_seed(0)
    for n in range(EXPERTS):
        trunk.add_adapter(str(n), config=settings)
    return model.eval()
