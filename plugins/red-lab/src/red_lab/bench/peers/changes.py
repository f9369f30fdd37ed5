"""Time until the next correct answer after an expert, or an adapter of PEFT, is changed.

PEFT has no router, so the caller names the adapter; nothing has to be trained.
"""

from __future__ import annotations

import importlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

import redhost
from red_lab.arithmetic import ArithmeticRow
from red_lab.base import LABELS
from red_lab.bench.peers.domains import CUT, DOMAINS, NEWCOMER, batches, build_experts, held_out
from red_lab.bench.peers.lora import load_adapters, train_adapters
from red_lab.bench.rounds import seconds_of, spread

__all__ = ["measure", "measure_peft"]

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
    router, accuracy = [], {}

    def step(name: str, change: Callable[[], redhost.Receipt], domain: str) -> None:
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
            accuracy["six"] = _accuracy(host)

    for _ in range(rounds):
        step("add", partial(host.attach, built[NEWCOMER]), NEWCOMER)
        step("remove", partial(host.detach, NEWCOMER), "range1")
        step("swap", partial(host.replace, CUT, built["other"]), CUT)
        host.replace(CUT, built[CUT])
    found: dict[str, Any] = {
        name: {"seconds": spread(values), "correct": right[name]}
        for name, values in timings.items()
    }
    found["add"] |= {"router_seconds": spread(router), "accuracy": accuracy["six"]}
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
