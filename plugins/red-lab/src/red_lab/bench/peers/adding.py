"""Adding one adapter to five: X-LoRA retrains its router."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

import redhost
from red_lab.arithmetic import Role
from red_lab.base import LABELS
from red_lab.bench.peers.batches import PeerBatch, accuracy, passes
from red_lab.bench.peers.domains import DOMAINS, held_out, rows_of
from red_lab.bench.peers.limits import BATCH, CARD, LOOK, RATE
from red_lab.bench.peers.lora import make_xlora, names, random_loras
from red_lab.bench.peers.model import load, token_ids
from red_lab.bench.peers.trained import load_adapters, oracle, train_adapters
from red_lab.bench.rounds import in_turns, spread
from redhost.core.routers import build_router
from redhost.core.routers.domain_statistics import Statistics

__all__ = ["adapters", "large", "measure"]


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


def large(*, folder: str, rounds: int) -> dict[str, Any]:
    """Time the components of both routers' training on a larger backbone.

    Adapters and experts are random: the time depends on shapes alone.

    Returns:
        Seconds of one X-LoRA step, of encoding as many rows, and of redhost's whole router.
    """
    model = load(Path(folder))
    ids = token_ids(Path(folder))[:BATCH]
    batch = PeerBatch(ids=ids, answers=torch.arange(BATCH), domains=("",) * BATCH)
    with tempfile.TemporaryDirectory() as saved:
        random_loras(Path(folder), len(DOMAINS)).save_pretrained(saved, save_embedding_layers=False)
        routed = make_xlora(load(Path(folder)), [Path(saved, n) for n in names(len(DOMAINS))])
    optimiser, width = _optimiser(routed), int(model.config.hidden_size)

    def encode() -> None:
        with torch.inference_mode():
            model(input_ids=ids)

    work: dict[str, Callable[[], object]] = {
        "step": partial(_step, routed, optimiser, batch),
        "encode": encode,
        "router": partial(_train_router, width),
    }
    return {n: spread(values) for n, values in in_turns(work, rounds=rounds).items()}


def _train_router(width: int) -> None:
    """Train redhost's default router over six experts and the backbone on random rows."""
    columns = (*DOMAINS, "backbone")
    config = redhost.BusConfig(width=width, labels=LABELS)
    router = build_router("evidence", config, columns, 0)
    if router is None:
        raise redhost.UsageError("there is no evidence router")
    data = []
    for n, column in enumerate(columns):
        z = torch.randn(CARD, width, generator=torch.Generator().manual_seed(n))
        answers = [LABELS[i % len(LABELS)] for i in range(CARD)]
        sums = Statistics.of_rows(z, answers)
        confidences = {"confidences": z[:, : len(columns)]}
        signals = redhost.plugins.RouterSignals(z, values=confidences)
        data.append(
            redhost.plugins.ColumnData(column=column, z=z, statistics=sums, signals=signals)
        )
    router.solve(data)


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
