"""Update metrics.json and its page: each command writes its part and leaves the others."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["note", "page"]

SCHEMA = "redhost-serve.metrics/1"


def note(out: Path, **parts: Mapping[str, Any]) -> Path:
    """Write parts of the metrics and the page; return the page's metrics file.

    Args:
        out: The folder.
        parts: ``storm``, ``soak`` or ``bench``.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / "metrics.json"
    known = json.loads(path.read_text("utf-8")) if path.exists() else {}
    machine = {"python": platform.python_version(), "cores": os.cpu_count()}
    metrics = {**known, "schema": SCHEMA, "machine": machine, **parts}
    path.write_text(json.dumps(metrics, indent=2, sort_keys=True) + "\n", "utf-8")
    (out / "README.md").write_text("\n".join(page(metrics)), "utf-8")
    return path


def page(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Return the lines of the page."""
    yield "# Serving"
    yield ""
    yield "Written by `redhost serve-storm`, `redhost serve-soak` and"
    yield "`redhost lab bench --serve` from `metrics.json`; do"
    cores = metrics["machine"]["cores"]
    yield f"not edit. The tiny backbone, {cores} cores that others share: read"
    yield "ratios rather than seconds."
    yield ""
    if "storm" in metrics:
        yield from _storm(metrics["storm"])
    if "soak" in metrics:
        yield from _soak(metrics["soak"])
    if "bench" in metrics:
        yield from _bench(metrics["bench"])


def _storm(s: Mapping[str, Any]) -> Iterator[str]:
    swaps, answers, memory = s["swaps"], s["answers"], s["memory"]
    refused = ", ".join(f"{n} × {status}" for status, n in swaps["statuses"].items())
    yield "## The storm"
    yield ""
    yield f"{s['clients']} clients ask without a pause for {s['seconds']:.0f} seconds, while"
    yield f"{swaps['done']} swaps between two generations are done and {swaps['refused']} broken"
    yield f"ones are refused ({refused})."
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| answers | {answers['all']} |"
    yield f"| failed, mixed, stale | {answers['failed']}, {answers['mixed']}, {answers['stale']} |"
    for name in ("steady", "storm"):
        t = s[name]
        yield f"| {name}: p50, p99 | {1e3 * t['p50']:.0f} ms, {1e3 * t['p99']:.0f} ms |"
    yield f"| p99, storm over steady | {s['p99_ratio']:.2f} |"
    took = s["swap_seconds"]
    yield f"| a swap: median, worst | {1e3 * took['median']:.0f} ms, {1e3 * took['worst']:.0f} ms |"
    yield f"| memory, after over before | {memory['growth']:+.1%} of {memory['before'] >> 20} MiB |"
    yield f"| generations in memory, 5 seconds after | {s['alive']} |"
    yield ""


def _soak(s: Mapping[str, Any]) -> Iterator[str]:
    first, last = s["points"][1], s["points"][-1]
    yield "## The soak"
    yield ""
    yield f"One client asks for {last['answers']:,} answers, 64 texts a request, while experts are"
    yield f"taken out and put back, {last['changes']:,} changes in all. Resident memory grows by"
    yield f"{s['growth']:+.1%} from the first {first['answers']:,} answers to the last."
    yield ""
    yield "| answers | changes | resident, MiB |"
    yield "|---|---|---|"
    for point in s["points"]:
        yield f"| {point['answers']:,} | {point['changes']:,} | {point['memory'] / 2**20:.0f} |"
    yield ""


def _bench(b: Mapping[str, Any]) -> Iterator[str]:
    query, rate = b["query"], b["throughput"]
    yield "## What HTTP costs, what batching gives"
    yield ""
    yield "| | | | ratio |"
    yield "|---|---|---|---|"
    yield (
        f"| one query, p50 | in process {1e3 * query['in_process']:.1f} ms "
        f"| over HTTP {1e3 * query['http']:.1f} ms | {query['ratio']:.2f} |"
    )
    yield (
        f"| answers a second, {rate['clients']} clients "
        f"| one request at a time {rate['one_at_a_time']:.0f} "
        f"| micro-batched {rate['batched']:.0f} | {rate['ratio']:.1f} |"
    )
    yield ""
