"""AdapterHub: five bottleneck adapters, fused or averaged. Runs in its own environment."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from red_lab.bench.peers.model import EXPERTS, Answers, Pass, compare, floor, load, token_ids
from red_lab.bench.rounds import seconds_of, spread

__all__ = ["SYSTEMS", "changes", "measure", "memory"]


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


def memory(*, folder: str, system: str) -> dict[str, Any]:
    """Build one system and let it answer the largest batch; the process then reports its peak."""
    run = SYSTEMS[system](Path(folder))
    with torch.inference_mode():
        run(token_ids(Path(folder)))
    return {}


def changes(*, folder: str, rounds: int) -> dict[str, Any]:
    """Time loading one more adapter and deleting it, each until the next answer.

    Weights are random, so an answer is correct if it is bitwise that of the intended adapters.
    """
    model = _model(Path(folder), EXPERTS + 1)
    trunk, ids = model.model.eval(), token_ids(Path(folder))[:1]
    composition: Any = importlib.import_module("adapters.composition")
    few, all_ = (
        composition.Average(*[str(n) for n in range(count)]) for count in (EXPERTS, EXPERTS + 1)
    )
    seconds: dict[str, list[float]] = {"add": [], "remove": []}
    right: dict[str, bool] = dict.fromkeys(seconds, True)
    with tempfile.TemporaryDirectory() as saved, torch.inference_mode():
        trunk.save_adapter(saved, str(EXPERTS))

        def answer(setup: Any) -> Tensor:
            trunk.set_active_adapters(setup)
            logits: Tensor = model(input_ids=ids).logits
            return logits

        expected = {"add": answer(all_), "remove": answer(few)}
        found: dict[str, Tensor] = {}

        def remove() -> None:
            trunk.delete_adapter(str(EXPERTS))
            found["remove"] = answer(few)

        def add() -> None:
            trunk.load_adapter(saved)
            trunk.eval()
            found["add"] = answer(all_)

        for _ in range(rounds):
            for name, work in (("remove", remove), ("add", add)):
                seconds[name].append(seconds_of(work))
                right[name] &= torch.equal(found[name], expected[name])
    return {n: {"seconds": spread(s), "correct": right[n]} for n, s in seconds.items()}


def _model(folder: Path, count: int = EXPERTS) -> Answers:
    """Return the folder's model with random bottleneck adapters of an expert's size."""
    adapters: Any = importlib.import_module("adapters")
    model = load(folder)
    trunk, width = model.model, int(model.config.hidden_size)
    adapters.init(trunk)
    # An expert of rank D/4 has D²/2 parameters; a bottleneck of d has 2·D·d in every block.
    inner = max(1, round(width / 4 / int(model.config.num_hidden_layers)))
    settings = adapters.SeqBnConfig(reduction_factor=width / inner)
    torch.manual_seed(0)
    for n in range(count):
        trunk.add_adapter(str(n), config=settings)
    return model.eval()
