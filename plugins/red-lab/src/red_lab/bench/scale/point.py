"""Measure one point of the curve in a separate process, since peak memory is per process.

Recompose from cold, again with cached features, then query and evaluate; at the last point add one
expert to the others and remove it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor

import redhost
from red_lab.bench.rounds import in_turns_over, peak_bytes
from red_lab.bench.scale.family import SumDomain
from red_lab.training import built_in_router
from redhost.core.training.router import RouterSettings, train_router
from redhost.core.training.router_data import columns_data

__all__ = ["add_one", "measure"]

ROUTER = "shortlist"

SIMPLER = ("centroid", "statistics")
"""Routers without a shortlist that can handle a thousand columns."""

LINEAR_UP_TO = 100
"""Largest number of experts for `linear`, whose gradient steps cover all rows and columns."""

ROWS = 2000
"""Maximum number of test rows, spread over the domains."""

BATCHES = (1, 64)


class Stopwatch:
    """Seconds by name: wall-clock, and processor time, which a busy machine does not increase.

    Attributes:
        wall: Wall-clock seconds.
        cpu: Processor seconds of this process, all threads.
    """

    def __init__(self) -> None:
        self.wall: dict[str, float] = {}
        self.cpu: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the block."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall[name] = time.perf_counter() - wall
        self.cpu[name] = time.process_time() - cpu


def measure(*, count: int, home: str, runs: int) -> dict[str, Any]:
    """Return the costs and the accuracy of a point.

    Args:
        count: Number of experts.
        home: A new home.
        runs: Timed queries of each batch size.
    """
    host, watch = redhost.Host.open(home), Stopwatch()
    with watch("cold"):
        cold = host.recompose(router=ROUTER)
    peak = (peak_bytes() or 0) / 2**30
    rows = test_rows(count)
    before = top_answers(host, rows)
    with watch("warm"):
        warm = host.recompose(router=ROUTER)
    with watch("row"):
        host.recompose(router=ROUTER, level="row")
    return {
        "experts": len(cold.experts),
        "seconds": watch.wall,
        "cpu": watch.cpu,
        "steps": {"cold": cold.steps, "warm": warm.steps},
        "outside_receipt": watch.wall["cold"] - cold.seconds,
        "peak_gib": peak,
        "unchanged": all(c.before == c.after for c in cold.experts.values()),
        "same_router": cold.router.digest == warm.router.digest,
        "same_answers": bool(torch.equal(before, top_answers(host, rows))),
        "gate": {"overall": cold.accuracy.overall, "oracle": cold.accuracy.oracle},
        "test": _judge(host, rows),
        "query_ms": _query(host, [r.text for r in rows], runs),
    }


def add_one(*, expert: str, home: str, level: Literal["row", "full"]) -> dict[str, Any]:
    """Attach an expert to a home and roll back; return seconds, and changes to other domains.

    Args:
        expert: The expert's id.
        home: A home of the other experts.
        level: How much of the router is trained again.
    """
    host = redhost.Host.open(home)
    rows, watch = test_rows(len(host.composed.bus.ids)), Stopwatch()
    before = top_answers(host, rows)
    with watch("attach"):
        attached = host.attach(expert, level=level)
    with_it = top_answers(host, rows)
    with watch("rollback"):
        host.rollback()
    return {
        "level": attached.router.level,
        "experts": len(attached.experts),
        "moved": len(attached.router.moved),
        "seconds": watch.wall,
        "cpu": watch.cpu,
        "steps": attached.steps,
        "same_labels": float((before[:, 1] == with_it[:, 1]).double().mean()),
        "back_again": bool(torch.equal(before, top_answers(host, rows))),
    }


def test_rows(count: int) -> list[redhost.Row]:
    """Return test rows of the first domains, evenly spread."""
    rows = [r for d in map(SumDomain, range(count)) for r in d.rows()["test"]]
    return rows[:: -(-len(rows) // ROWS)]


def top_answers(host: redhost.Host, rows: Sequence[redhost.Row]) -> Tensor:
    """Return the probability of the most probable label and its index, ``(N, 2)``."""
    composed = host.composed
    h = composed.backbone.encode([r.text for r in rows])
    with torch.inference_mode():
        best = [composed.bus(part)[0].max(-1) for part in torch.split(h, max(BATCHES))]
    return torch.cat([torch.stack([b.values, b.indices.float()], dim=1) for b in best])


def _judge(host: redhost.Host, rows: Sequence[redhost.Row]) -> dict[str, Any]:
    """Return how often the own expert is selected, and how often answers are correct."""
    composed = host.composed
    bus, encode = composed.bus, host.encoder(composed)
    h, owner = encode([r.text for r in rows]), composed.owners(rows)

    def right(weights_of: Callable[[Tensor, Tensor], Tensor]) -> float:
        hits = []
        for n in torch.split(torch.arange(len(h)), 500):
            part = h[n]
            z = bus.norm(part)
            p = bus.probabilities(part, z, weights_of(z, n))
            hits.append(bus.task.head.right(p, [rows[int(i)] for i in n], bus.labels))
        return float(torch.cat(hits).mean())

    with torch.inference_mode():
        z = bus.norm(h)
        found = {
            composed.router_kind: _tops(
                torch.cat([bus.weights(x) for x in torch.split(z, 500)]), owner
            )
        }
        own = composed.oracle_weights(rows)
        answers = {
            "routed": right(lambda z, _: bus.weights(z)),
            "oracle": right(lambda _, n: own[n]),
            "backbone": right(lambda _, n: torch.zeros_like(own[n])),
        }
    config, count = composed.backbone.bus_config(), len(bus.ids)
    for kind in (*SIMPLER, *(["linear"] if count <= LINEAR_UP_TO else [])):
        router = built_in_router(kind, config, bus.columns)
        data = columns_data(composed, encode=encode, reads=router.reads)
        train_router(router, data, columns=bus.columns, settings=RouterSettings())
        with torch.inference_mode():
            found[kind] = _tops(router(z), owner)
    return {"rows": len(rows), "own_expert": found, "answers": answers}


def _tops(weights: Tensor, owner: Tensor) -> dict[str, float]:
    """Return how often the own column has the largest weight, and one of the two largest."""
    two = weights.topk(min(2, weights.shape[1]), dim=-1).indices == owner[:, None]
    return {"top1": float(two[:, 0].double().mean()), "top2": float(two.any(1).double().mean())}


def _query(host: redhost.Host, texts: Sequence[str], runs: int) -> dict[str, dict[str, float]]:
    """Time backbone and bus separately, alternately, for batches of uncached texts."""
    composed, medians = host.composed, {}
    for batch in BATCHES:
        works = []
        for run in range(runs + 1):
            first = run * batch % max(1, len(texts) - batch)
            some = (list(texts[first : first + batch]) * batch)[:batch]
            works.append((some, composed.backbone.encode(some)))
        with torch.inference_mode():
            seconds = in_turns_over(
                {
                    "backbone": lambda work: composed.backbone.encode(work[0]),
                    "bus": lambda work: composed.bus(work[1]),
                },
                works,
            )
        medians[str(batch)] = {n: 1000 * statistics.median(s) for n, s in seconds.items()}
    return medians
