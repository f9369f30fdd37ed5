"""LoRA adapters of the six domains, trained on the same rows as the experts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from red_lab.arithmetic import ArithmeticRow
from red_lab.bench.peers.batches import PeerBatch, accuracy, passes
from red_lab.bench.peers.domains import CUT, DOMAINS, held_out, rows_of
from red_lab.bench.peers.libraries import peft
from red_lab.bench.peers.lora import config
from red_lab.bench.peers.model import load

__all__ = ["load_adapters", "oracle", "train_adapters"]

STEPS, BATCH, RATE = 300, 64, 2e-2
PLACES = ("down_proj",)
"""The best of eight tried on held-out rows of the hardest domain, range1, for 200 steps (q and v
at 5e-3: 400): q and v at 1e-3, 5e-3 and 2e-2, all seven projections at 1e-3 (twice the size) and
1e-2, the three of the feed-forward layer at 1e-2, its last alone at 4e-3 and 2e-2."""


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
