"""Adding one adapter to five: X-LoRA retrains its router."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from red_lab.arithmetic import Role
from red_lab.bench.peers.domains import DOMAINS, PeerBatch, accuracy, held_out, passes, rows_of
from red_lab.bench.peers.lora import load_adapters, make_xlora, oracle, train_adapters
from red_lab.bench.peers.model import load

__all__ = ["adapters", "measure"]

BATCH, LOOK, RATE = 32, 20, 1e-2
"""Rows of a step, steps between two evaluations, and AdamW's learning rate: the best of six tried
on held-out rows (rates 3e-3 and 1e-2, 5e-3 with 128 rows and more decay, layerwise scalings, two
layers at 1e-3, a temperature of .3)."""


def adapters(*, folder: str, work: str) -> dict[str, Any]:
    """Train the adapters of the six domains, or load them; return their oracle accuracy."""
    saved = train_adapters(Path(folder), Path(work))
    model = load_adapters(Path(folder), {d: saved[d] for d in DOMAINS})
    return {"oracle": oracle(model)}


def measure(
    *, folder: str, work: str, roles: list[Role], target: float, cap: float
) -> dict[str, Any]:
    """Train X-LoRA's router over six adapters until it reaches an accuracy.

    Args:
        folder: The tiny model's folder.
        work: The folder of the adapters.
        roles: Its training rows: ``fit``, as redhost's router uses, or ``train`` too.
        target: The accuracy on held-out rows to reach.
        cap: Maximum seconds of training; evaluations are not counted.
    """
    saved = train_adapters(Path(folder), Path(work))
    model = make_xlora(load(Path(folder)), [saved[d] for d in DOMAINS])
    optimiser = _optimiser(model)
    rows = [r for d in DOMAINS for role in roles for r in rows_of(d, role)]
    seconds, curve = 0.0, []
    for n, batch in enumerate(passes(rows, BATCH, seed=0), start=1):
        start = perf_counter()
        _step(model, optimiser, batch)
        seconds += perf_counter() - start
        if n % LOOK == 0 or seconds > cap:
            found = accuracy(lambda b: _logits(model.eval(), b), held_out())
            curve.append({"steps": n, "seconds": seconds, "accuracy": found})
            if found >= target or seconds > cap:
                break
    best = max(curve, key=lambda point: (point["accuracy"], -point["steps"]))
    reached = curve[-1]["accuracy"] >= target
    summary = {"rows": len(rows), "reached": reached, "best": best, "curve": curve}
    return {**curve[-1], **summary}


def _optimiser(model: Any) -> torch.optim.Optimizer:
    weights = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(weights, lr=RATE)


def _step(model: Any, optimiser: torch.optim.Optimizer, batch: PeerBatch) -> None:
    """Take one step of the router; the adapters are frozen."""
    model.train()
    loss = nn.functional.cross_entropy(_logits(model, batch), batch.answers)
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()


def _logits(model: Any, batch: PeerBatch) -> Tensor:
    logits: Tensor = model(input_ids=batch.ids).logits
    return logits
