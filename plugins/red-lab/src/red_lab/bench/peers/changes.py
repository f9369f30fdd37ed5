"""redhost: time until the next correct answer after an expert is added, removed or exchanged."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import safetensors.torch
import torch

import redhost
from red_lab.arithmetic import ArithmeticRow
from red_lab.bench.peers.domains import CUT, DOMAINS, NEWCOMER, build_experts, held_out
from red_lab.bench.peers.under_load import under_load
from red_lab.bench.rounds import seconds_of, spread
from redhost.core.bus.experts import LowRank

__all__ = ["exchange", "measure"]

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
        found = _changes(host, built, Path(folder, FEATURES), rounds=rounds)
        found |= _bus_swap(host.composed, built["other"], rounds=rounds)
        return {"changes": found, "live": _live(host, built, rounds=rounds)}


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


def _bus_swap(composed: redhost.ComposedModel, package: Path, *, rounds: int) -> dict[str, Any]:
    """Time an exchange on the bus alone: weights are in memory, the router is unchanged."""
    tensors = safetensors.torch.load((package / "expert.safetensors").read_bytes())
    row = _row(CUT)
    serving = [composed]
    swapped, answered, right = [], [], True

    def swap() -> None:
        bus = exchange(composed.bus, CUT, tensors)
        serving[0] = dataclasses.replace(composed, bus=bus)

    for _ in range(10 * rounds):
        start = perf_counter()
        swapped.append(seconds_of(swap))
        right &= serving[0].answer([row.text])[0].label == row.label
        answered.append(perf_counter() - start)
    return {
        "bus swap": {"seconds": spread(swapped), "correct": right},
        "bus swap, answered": {"seconds": spread(answered), "correct": right},
    }


def exchange(bus: redhost.Bus, name: str, tensors: Mapping[str, torch.Tensor]) -> redhost.Bus:
    """Return a bus with one low-rank expert rebuilt from tensors, and the rest unchanged."""
    experts = dict(zip(bus.ids, bus.parts(), strict=True))
    old = experts[name]
    if not isinstance(old, LowRank):
        raise redhost.UsageError("only low-rank experts are exchanged here")
    experts[name] = LowRank(
        U=tensors["U"],
        V=tensors["V"],
        activation=old.activation,
        space=old.space,
        labels=old.labels,
    )
    made = redhost.Bus(
        bus.readout,
        norm=bus.norm,
        router=bus.router,
        experts=experts,
        backbone_column=len(bus.columns) > len(bus.ids),
    )
    return made.eval().requires_grad_(False)


def _live(host: redhost.Host, built: Mapping[str, Path], *, rounds: int) -> dict[str, Any]:
    """Swap two generations under a client that queries without a pause."""
    first = host.generations.current()
    second = host.replace(CUT, built["other"]).generation
    rows = _right_in_both(host, [n for n in (first, second) if n is not None])
    texts, labels = [r.text for r in rows], [r.label for r in rows]
    live = redhost.Live(host.session)
    live.predict(texts)
    with under_load(lambda: [a.label for a in live.predict(texts)], labels) as tally:
        swaps = [(first, second)[n % 2] for n in range(10 * rounds)]
        seconds = [seconds_of(partial(live.swap, number)) for number in swaps]
    return {"seconds": spread(seconds), "swaps": len(seconds), **tally.summary()}


def _right_in_both(host: redhost.Host, generations: Sequence[int]) -> list[ArithmeticRow]:
    """Return a row of each domain that every generation answers correctly."""
    rows = [_row(d) for d in DOMAINS if d != NEWCOMER]
    for number in generations:
        answers = host.load(number).answer([r.text for r in rows])
        rows = [r for r, a in zip(rows, answers, strict=True) if a.label == r.label]
    return rows


def _row(domain: str) -> ArithmeticRow:
    """Return a held-out row of a domain."""
    return next(r for r in held_out() if r.domain == domain)


def _accuracy(host: redhost.Host) -> float:
    """Return the current generation's accuracy on all held-out rows."""
    rows = held_out()
    answers = host.predict([r.text for r in rows])
    return sum(a.label == r.label for a, r in zip(answers, rows, strict=True)) / len(rows)
