"""redhost's bus and PEFT: forward passes in the environment of redhost, to time.

Adapters are random, since times depend on shapes alone.
"""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from red_lab.bench.peers_model import (
    EXPERTS,
    TARGETS,
    Answers,
    Pass,
    compare,
    floor,
    load,
    peak_memory,
    rank_for,
    token_ids,
)
from red_lab.cost import Load, build_bus
from redhost import Bus, MissingError

__all__ = [
    "APART",
    "HINT",
    "SYSTEMS",
    "bus_alone",
    "five",
    "make_xlora",
    "measure",
    "memory",
    "merged",
    "mixed",
    "names",
    "one",
    "peft",
    "random_loras",
    "redhost",
    "xlora",
]

HINT = "Run 'make .venv/peers', or name other sections: 'redhost lab bench profile scale'."


def peft() -> Any:
    """Import PEFT.

    Raises:
        MissingError: If it is not installed.
    """
    try:
        return importlib.import_module("peft")
    except ImportError as e:
        raise MissingError(
            "the peers are not installed", expected="peft 0.21", found="none", hint=HINT
        ) from e


def names(count: int = EXPERTS) -> list[str]:
    """Return adapters' names; X-LoRA in PEFT 0.21 identifies them by number only."""
    return [str(n) for n in range(count)]


def random_loras(folder: Path, count: int = EXPERTS) -> Any:
    """Return the model of a folder with `count` untrained adapters of an expert's size.

    Both factors are drawn at random, so that an untrained adapter has an effect; the other settings
    are PEFT's defaults.
    """
    model = load(folder)
    rank = rank_for(model)
    settings = peft().LoraConfig(
        r=rank, lora_alpha=2 * rank, target_modules=list(TARGETS), init_lora_weights=False
    )
    torch.manual_seed(0)
    first, *others = names(count)
    made = peft().get_peft_model(model, settings, adapter_name=first)
    for name in others:
        made.add_adapter(name, settings)
    return made.eval().requires_grad_(False)


def one(folder: Path) -> Pass:
    """Return the pass with one adapter active of five loaded."""
    model = random_loras(folder)
    model.set_adapter("0")
    return lambda ids: model(input_ids=ids).logits


def five(folder: Path) -> Pass:
    """Return the pass with five adapters active at once."""
    model = random_loras(folder)
    model.base_model.set_adapter(names())
    return lambda ids: model(input_ids=ids).logits


def mixed(folder: Path) -> Pass:
    """Return the pass of a batch whose rows name their adapters."""
    model = random_loras(folder)

    def run(ids: Tensor) -> Tensor:
        chosen = [str(n % EXPERTS) for n in range(len(ids))]
        logits: Tensor = model(input_ids=ids, adapter_names=chosen).logits
        return logits

    return run


def merged(folder: Path) -> Pass:
    """Return the pass with one adapter merged into the weights and its layers removed."""
    model = random_loras(folder, 1).merge_and_unload()
    return lambda ids: model(input_ids=ids).logits


def xlora(folder: Path) -> Pass:
    """Return X-LoRA's pass over five adapters."""
    with tempfile.TemporaryDirectory() as saved:
        model = random_loras(folder)
        model.save_pretrained(saved, save_embedding_layers=False)
        made = make_xlora(load(folder), [Path(saved, name) for name in names()])
    made.eval()
    return lambda ids: made(input_ids=ids).logits


def make_xlora(model: Answers, adapters: Sequence[Path]) -> Any:
    """Return X-LoRA over saved adapters, with its default router of one layer, untrained.

    Args:
        model: The model that the adapters were trained on.
        adapters: Their folders.
    """
    settings = peft().XLoraConfig(
        hidden_size=int(model.config.hidden_size),
        adapters={str(n): str(path) for n, path in enumerate(adapters)},
        xlora_depth=1,
    )
    torch.manual_seed(0)
    return peft().get_peft_model(model, settings)


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
    "peft one": one,
    "peft five": five,
    "peft mixed": mixed,
    "peft merged": merged,
    "x-lora": xlora,
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


memory = partial(peak_memory, SYSTEMS)
