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
from red_lab.bench.rounds import spread

__all__ = ["measure", "measure_oracle", "measure_peft", "measure_xlora"]

BATCH, LOOK, RATE = 32, 20, 1e-2
"""Rows of a step, steps between two evaluations, and AdamW's learning rate: the best of six tried
on held-out rows (rates 3e-3 and 1e-2, 5e-3 with 128 rows and more decay, layerwise scalings, two
layers at 1e-3, a temperature of .3)."""

FEATURES = "five"
"""The five experts' feature cache, restored before every change, so the newcomer's card is new."""


def measure(*, work: str, rounds: int) -> dict[str, Any]:
    """Change a home of five experts repeatedly, and query after each published change.

    A change checks a package, trains the router, evaluates, writes a generation and loads it.
    """
    built = build_experts(Path(work))
    with (
        tempfile.TemporaryDirectory() as folder,
        redhost.Host.open(Path(folder, "home"), backbone="tiny") as host,
    ):
        host.recompose(seed=0)
        host.replace(CUT, built[CUT])
        features = Path(folder, FEATURES)
        shutil.copytree(host.cache, features)
        router: list[float] = []

        def add() -> None:
            router.append(host.attach(built[NEWCOMER]).router.seconds)

        def forget() -> None:
            shutil.rmtree(host.cache)
            shutil.copytree(features, host.cache)

        changes = _repeated(
            {
                "add": (add, _row(NEWCOMER)),
                "remove": (partial(host.detach, NEWCOMER), _row("range1")),
                "swap": (partial(host.replace, CUT, built["other"]), _row(CUT)),
            },
            ask=lambda row: host.predict([row.text])[0].label,
            before=forget,
            restore=partial(host.replace, CUT, built[CUT]),
            rounds=rounds,
        )
        changes["add"]["router_seconds"] = spread(router)
        add()
        changes["add"]["accuracy"] = _accuracy(host)
    return changes


Steps = Mapping[str, tuple[Callable[[], object], ArithmeticRow]]
"""Name → a change, and the row that is asked after it."""


def _repeated(
    steps: Steps,
    *,
    ask: Callable[[ArithmeticRow], str],
    before: Callable[[], object],
    restore: Callable[[], object],
    rounds: int,
) -> dict[str, dict[str, Any]]:
    """Return for each change the seconds until its answer, and whether all answers are correct.

    Args:
        steps: The changes of a round.
        ask: Answers a row.
        before: Called before each change, not timed.
        restore: Returns to the state before a round.
        rounds: Number of rounds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    correct = dict.fromkeys(steps, True)
    for _ in range(rounds):
        for name, (change, row) in steps.items():
            before()
            start = perf_counter()
            change()
            answer = ask(row)
            seconds[name].append(perf_counter() - start)
            correct[name] &= answer == row.label
        restore()
    return {name: {"seconds": spread(seconds[name]), "correct": correct[name]} for name in steps}


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
    return _repeated(
        {
            "add": (partial(model.load_adapter, saved[NEWCOMER], NEWCOMER), rows[NEWCOMER]),
            "remove": (partial(model.delete_adapter, NEWCOMER), rows[CUT]),
            "swap": (partial(swap, model, str(saved["other"]), adapter_name=CUT), rows[CUT]),
        },
        ask=partial(_ask, model),
        before=lambda: None,
        restore=partial(swap, model, str(saved[CUT]), adapter_name=CUT),
        rounds=rounds,
    )


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
    """Answer a row with the adapter of its domain; a change may have left evaluation mode."""
    model.eval()
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
