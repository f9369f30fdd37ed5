"""PEFT: adapters on the floor's model, random ones to time and trained ones of six domains."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import redhost
from red_lab.arithmetic import ArithmeticRow
from red_lab.bench.peers.domains import (
    CUT,
    DOMAINS,
    PeerBatch,
    accuracy,
    held_out,
    passes,
    rows_of,
)
from red_lab.bench.peers.model import EXPERTS, TARGETS, Answers, Pass, load, rank_for

__all__ = [
    "HINT",
    "config",
    "five",
    "load_adapters",
    "make_xlora",
    "merged",
    "mixed",
    "names",
    "one",
    "oracle",
    "peft",
    "random_loras",
    "train_adapters",
    "xlora",
]


HINT = "Run 'make .venv/peers', or name other sections: 'redhost lab bench profile scale'."

STEPS, BATCH, RATE = 300, 64, 2e-2
PLACES = ("down_proj",)
"""The best of eight tried on held-out rows of the hardest domain, range1, for 200 steps (q and v
at 5e-3: 400): q and v at 1e-3, 5e-3 and 2e-2, all seven projections at 1e-3 (twice the size) and
1e-2, the three of the feed-forward layer at 1e-2, its last alone at 4e-3 and 2e-2."""


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


def config(model: Answers, *, places: Sequence[str] = TARGETS, random: bool = False) -> Any:
    """Return an adapter's settings: PEFT's defaults, without dropout, at an expert's size.

    Args:
        model: The model to adapt.
        places: The adapted projections.
        random: Draw both factors at random, so that an untrained adapter has an effect.
    """
    rank = rank_for(model, places)
    return peft().LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=list(places),
        init_lora_weights=not random,
    )


def random_loras(folder: Path, count: int = EXPERTS) -> Any:
    """Return the model of a folder with `count` untrained adapters."""
    model = load(folder)
    settings = config(model, random=True)
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


def train_adapters(folder: Path, work: Path) -> Mapping[str, Path]:
    """Train an adapter for every domain, and ``other``, another build of range3.

    Args:
        folder: The tiny model's folder.
        work: The folder of the adapters; existing ones are not trained again.
    """
    folders = {}
    for name, domain, seed in (*((d, d, 0) for d in DOMAINS), ("other", CUT, 1)):
        saved = work / "adapters" / name
        if not (saved / "adapter_config.json").exists():
            _train(folder, rows_of(domain, "train"), saved, seed=seed)
        folders[name] = saved
    return folders


def load_adapters(folder: Path, adapters: Mapping[str, Path]) -> Any:
    """Return the model of a folder with saved adapters under their names."""
    (first, path), *others = adapters.items()
    made = peft().PeftModel.from_pretrained(load(folder), path, adapter_name=first)
    for name, other in others:
        made.load_adapter(other, name)
    return made.eval()


def oracle(model: Any) -> float:
    """Return the accuracy on held-out rows if every row uses its domain's adapter."""

    def answer(batch: PeerBatch) -> torch.Tensor:
        logits: torch.Tensor = model(input_ids=batch.ids, adapter_names=list(batch.domains)).logits
        return logits

    return accuracy(answer, held_out())


def _train(folder: Path, rows: list[ArithmeticRow], saved: Path, *, seed: int) -> None:
    """Train one adapter alone; its settings are written last."""
    torch.manual_seed(seed)
    base = load(folder)
    model = peft().get_peft_model(base, config(base, places=PLACES)).train()
    weights = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=RATE, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for _, batch in zip(range(STEPS), passes(rows, BATCH, seed=seed), strict=False):
        loss = nn.functional.cross_entropy(model(input_ids=batch.ids).logits, batch.answers)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    model.save_pretrained(saved, save_embedding_layers=False)
