"""PEFT: random adapters on the floor's model, to time."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import redhost
from red_lab.bench.peers.model import EXPERTS, TARGETS, Answers, Pass, load, rank_for

__all__ = [
    "HINT",
    "five",
    "make_xlora",
    "merged",
    "mixed",
    "names",
    "one",
    "peft",
    "random_loras",
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
        raise redhost.MissingError(
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
