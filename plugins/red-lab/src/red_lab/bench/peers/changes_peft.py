"""PEFT: time until the next correct answer after an adapter is loaded, deleted or swapped.

PEFT has no router, so the caller names the adapter; nothing has to be trained.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from red_lab.arithmetic import ArithmeticRow
from red_lab.base import LABELS
from red_lab.bench.peers.batches import batches
from red_lab.bench.peers.domains import CUT, DOMAINS, NEWCOMER, held_out
from red_lab.bench.peers.trained import load_adapters, train_adapters
from red_lab.bench.peers.under_load import under_load
from red_lab.bench.rounds import seconds_of, spread

__all__ = ["measure"]

MOST_ROWS = 5


def measure(*, folder: str, work: str, rounds: int) -> dict[str, Any]:
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
            row = rows[domain][0]
            answers: list[str] = []

            def work_(
                change: Any = change, row: ArithmeticRow = row, answers: list[str] = answers
            ) -> None:
                change()
                model.eval()
                answers.extend(_ask(model, [row]))

            timings[name].append(seconds_of(work_))
            right[name] &= answers == [row.label]
        swap(model, str(saved[CUT]), adapter_name=CUT)
    changes = {
        name: {"seconds": spread(values), "correct": right[name]}
        for name, values in timings.items()
    }
    return {"changes": changes, "live": _live(model, saved, swap, rows[CUT], rounds=rounds)}


def _live(
    model: Any, saved: Mapping[str, Path], swap: Any, rows: list[ArithmeticRow], *, rounds: int
) -> dict[str, Any]:
    """Hot-swap under a client that queries without a pause, without a lock between the two."""
    paths = [str(saved[("other", CUT)[n % 2]]) for n in range(10 * rounds)]
    with under_load(lambda: _ask(model, rows), [r.label for r in rows]) as tally:
        seconds = [seconds_of(partial(swap, model, p, adapter_name=CUT)) for p in paths]
    return {"seconds": spread(seconds), "swaps": len(seconds), **tally.summary()}


def _right(model: Any, saved: Mapping[str, Path], swap: Any) -> dict[str, list[ArithmeticRow]]:
    """Return a few rows of each domain, of one length, that every build answers correctly."""
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
    longest = max(len(r.text) for r in rows[CUT])
    return {
        d: [r for r in found if len(r.text) == longest][:MOST_ROWS] for d, found in rows.items()
    }


def _rightly_answered(model: Any, rows: list[ArithmeticRow]) -> list[ArithmeticRow]:
    return [r for r in rows if _ask(model, [r]) == [r.label]]


def _ask(model: Any, rows: list[ArithmeticRow]) -> list[str]:
    """Answer rows of one length, each with the adapter of its domain."""
    [batch] = batches(rows, len(rows))
    with torch.inference_mode():
        logits = model(input_ids=batch.ids, adapter_names=list(batch.domains)).logits
    return [LABELS[int(i)] for i in logits.argmax(-1)]
