"""Time until the next correct answer after an expert, or an adapter of PEFT, is changed.

PEFT has no router, so the caller names the adapter and nothing has to be trained; X-LoRA retrains
its router when an adapter is added.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

import redhost
from red_lab.arithmetic import ArithmeticRow, Role
from red_lab.base import LABELS
from red_lab.bench.peers.domains import (
    CUT,
    DOMAINS,
    NEWCOMER,
    PeerBatch,
    accuracy,
    batches,
    build_experts,
    held_out,
    passes,
    rows_of,
)
from red_lab.bench.peers.lora import load_adapters, make_xlora, oracle, train_adapters
from red_lab.bench.peers.model import load
from red_lab.bench.rounds import seconds_of, spread

__all__ = ["measure", "measure_oracle", "measure_peft", "measure_xlora"]

BATCH, LOOK, RATE = 32, 20, 1e-2
"""Rows of a step, steps between two evaluations, and AdamW's learning rate: the best of six tried
on held-out rows (rates 3e-3 and 1e-2, 5e-3 with 128 rows and more decay, layerwise scalings, two
layers at 1e-3, a temperature of .3)."""

FEATURES = "five"
"""The five experts' feature cache, restored before every change, so the newcomer's card is new."""


def measure(*, work: str, rounds: int) -> dict[str, Any]:
    """Change a home of five experts repeatedly, and query after each change."""
    built = build_experts(Path(work))
    with (
        tempfile.TemporaryDirectory() as folder,
        redhost.Host.open(Path(folder, "home"), backbone="tiny") as host,
    ):
        host.recompose(seed=0)
        host.replace(CUT, built[CUT])
        shutil.copytree(host.cache, Path(folder, FEATURES))
        return _changes(host, built, Path(folder, FEATURES), rounds=rounds)


def _changes(
    host: redhost.Host, built: Mapping[str, Path], features: Path, *, rounds: int
) -> dict[str, Any]:
    """Time a host's published changes: check, train, evaluate, write, load, and query."""
    timings: dict[str, list[float]] = {"add": [], "remove": [], "swap": []}
    right: dict[str, bool] = dict.fromkeys(timings, True)
    router, held = [], 0.0

    def step(name: str, change: Callable[[], redhost.Receipt], domain: str) -> None:
        nonlocal held
        row, answers, receipts = _row(domain), [], []
        shutil.rmtree(host.cache)
        shutil.copytree(features, host.cache)

        def work() -> None:
            receipts.append(change())
            answers.extend(host.predict([row.text]))

        timings[name].append(seconds_of(work))
        right[name] &= answers[0].label == row.label
        if name == "add":
            router.append(receipts[0].router.seconds)
            held = _accuracy(host)

    for _ in range(rounds):
        step("add", partial(host.attach, built[NEWCOMER]), NEWCOMER)
        step("remove", partial(host.detach, NEWCOMER), "range1")
        step("swap", partial(host.replace, CUT, built["other"]), CUT)
        host.replace(CUT, built[CUT])
    found: dict[str, Any] = {
        name: {"seconds": spread(values), "correct": right[name]}
        for name, values in timings.items()
    }
    found["add"] |= {"router_seconds": spread(router), "accuracy": held}
    return found


def _row(domain: str) -> ArithmeticRow:
    """Return a held-out row of a domain."""
    return next(r for r in held_out() if r.domain == domain)


def _accuracy(host: redhost.Host) -> float:
    """Return the current generation's accuracy on all held-out rows."""
    rows = held_out()
    answers = host.predict([r.text for r in rows])
    return sum(a.label == r.label for a, r in zip(answers, rows, strict=True)) / len(rows)


def measure_peft(*, folder: str, work: str, rounds: int) -> dict[str, Any]:
    """Load, delete and swap adapters next to five repeatedly, and query after each change."""
    saved = train_adapters(Path(folder), Path(work))
    model = load_adapters(Path(folder), {d: saved[d] for d in DOMAINS if d != NEWCOMER})
    swap = importlib.import_module("peft.utils.hotswap").hotswap_adapter
    rows = _right(model, saved, swap)
    steps: dict[str, tuple[Callable[[], object], str]] = {
        "add": (partial(model.load_adapter, saved[NEWCOMER], NEWCOMER), NEWCOMER),
        "remove": (partial(model.delete_adapter, NEWCOMER), CUT),
        "swap": (partial(swap, model, str(saved["other"]), adapter_name=CUT), CUT),
    }
    timings: dict[str, list[float]] = {name: [] for name in steps}
    right: dict[str, bool] = dict.fromkeys(timings, True)
    for _ in range(rounds):
        for name, (change, domain) in steps.items():
            answers: list[str] = []
            work_ = partial(_change_and_ask, model, change, rows[domain], answers)
            timings[name].append(seconds_of(work_))
            right[name] &= answers == [rows[domain].label]
        swap(model, str(saved[CUT]), adapter_name=CUT)
    return {
        name: {"seconds": spread(values), "correct": right[name]}
        for name, values in timings.items()
    }


def _change_and_ask(
    model: Any, change: Callable[[], object], row: ArithmeticRow, answers: list[str]
) -> None:
    """Change the adapters and append the next answer."""
    change()
    model.eval()
    answers.append(_ask(model, row))


def _right(model: Any, saved: Mapping[str, Path], swap: Any) -> dict[str, ArithmeticRow]:
    """Return a row of each changed domain that every build answers correctly."""
    model.load_adapter(saved[NEWCOMER], NEWCOMER)
    model.eval()
    rows = {
        d: _rightly_answered(model, [r for r in held_out() if r.domain == d])
        for d in (CUT, NEWCOMER)
    }
    swap(model, str(saved["other"]), adapter_name=CUT)
    rows[CUT] = _rightly_answered(model, rows[CUT])
    swap(model, str(saved[CUT]), adapter_name=CUT)
    model.delete_adapter(NEWCOMER)
    return {d: right[0] for d, right in rows.items()}


def _rightly_answered(model: Any, rows: list[ArithmeticRow]) -> list[ArithmeticRow]:
    return [r for r in rows if _ask(model, r) == r.label]


def _ask(model: Any, row: ArithmeticRow) -> str:
    """Answer a row with the adapter of its domain."""
    [batch] = batches([row], 1)
    with torch.inference_mode():
        logits = model(input_ids=batch.ids, adapter_names=list(batch.domains)).logits
    return LABELS[int(logits.argmax())]


def measure_oracle(*, folder: str, work: str) -> dict[str, Any]:
    """Train the adapters of the six domains, or load them; return their oracle accuracy."""
    saved = train_adapters(Path(folder), Path(work))
    model = load_adapters(Path(folder), {d: saved[d] for d in DOMAINS})
    return {"oracle": oracle(model)}


def measure_xlora(
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
