"""Write the metrics of `redhost lab hotswap` as a page."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from red_lab.metrics import Metrics

__all__ = ["page"]

Event = Mapping[str, Any]


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.hotswap/1``."""
    lines = [
        *_head(metrics),
        *_accuracy(metrics),
        *_seconds(metrics),
        *_proof(metrics),
        *_note(metrics),
    ]
    return "\n".join(lines)


def _head(metrics: Mapping[str, Any]) -> Iterator[str]:
    yield "# Hot-swapping experts"
    yield ""
    yield "Written by `redhost lab hotswap` from `metrics.json`; do not edit."
    yield ""
    yield "Every shipped expert in turn is removed (`redhost disable`), added back, replaced by"
    yield "other builds of the same package (installed before it on the path) and restored. After"
    yield f"each event `redhost recompose` runs with the router `{metrics['router']}`. Accuracy is"
    yield "measured on the backbone's held-out rows."
    yield ""


def _accuracy(metrics: Mapping[str, Any]) -> Iterator[str]:
    """Yield one table for each group of levels with the same accuracies."""
    tables: dict[str, list[str]] = {}
    for level, found in _levels(metrics):
        tables.setdefault("\n".join(_table(found)), []).append(f"`{level}`")
    for table, levels in tables.items():
        yield f"Accuracy on the swapped expert's own range, level {' and '.join(levels)}:"
        yield ""
        yield table
        yield ""


def _table(found: Mapping[str, Any]) -> Iterator[str]:
    names = list(dict.fromkeys(e["event"] for e in found["events"]))
    yield f"| expert | before | {' | '.join(names)} | other ranges, at worst | at best |"
    yield "|---" * (len(names) + 4) + "|"
    for expert in dict.fromkeys(e["expert"] for e in found["events"]):
        events = {e["event"]: e for e in found["events"] if e["expert"] == expert}
        own = " | ".join(f"{events[n]['accuracy'][expert]:.3f}" for n in names)
        start = found["start"]["accuracy"]
        others = [
            100 * (value - start[name])
            for e in events.values()
            for name, value in e["accuracy"].items()
            if name != expert
        ]
        yield (
            f"| {expert} | {start[expert]:.3f} | {own} | {min(others):+.1f} points "
            f"| {max(others):+.1f} points |"
        )


def _seconds(metrics: Mapping[str, Any]) -> Iterator[str]:
    yield "Seconds of a whole recompose in a newly opened host, in brackets the router's training;"
    yield "medians over the experts. The machine was shared, so only ratios are meaningful:"
    yield ""
    levels = _levels(metrics)
    yield f"| event | {' | '.join(f'`{level}`' for level, _ in levels)} |"
    yield "|---" * (len(levels) + 1) + "|"
    for name in dict.fromkeys(e["event"] for _, found in levels for e in found["events"]):
        cells = (_median([e for e in found["events"] if e["event"] == name]) for _, found in levels)
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def _median(events: Sequence[Event]) -> str:
    whole, router = (
        statistics.median(e[key] for e in events) for key in ("seconds", "router_seconds")
    )
    return f"{whole:.2f} ({router:.3f})"


def _proof(metrics: Mapping[str, Any]) -> Iterator[str]:
    yield "Changes, by the digests in the receipts. *Refused* counts recomposes that needed"
    yield "`--accept`, because the accuracy of a range would have fallen by more than the"
    yield "tolerance. After an expert is added back or restored, expert and router are compared"
    yield "with the start by digest, and the answers bitwise:"
    yield ""
    yield (
        "| level | events | bytes changed outside the router | refused "
        "| same expert | same router | same answers |"
    )
    yield "|---" * 7 + "|"
    for level, found in _levels(metrics):
        events = found["events"]
        back = [e for e in events if e["event"] in {"added back", "restored"}]
        yield (
            f"| `{level}` | {len(events)} | {sum(e['bytes_changed'] for e in events)} "
            f"| {sum(e['refused'] for e in events)} "
            f"| {sum(e['same_expert'] for e in back)} of {len(back)} "
            f"| {sum(e['same_router'] for e in back)} of {len(back)} "
            f"| {sum(e['same_answers'] for e in back)} of {len(back)} |"
        )
    yield ""
    o = metrics["orders"]
    yield f"All {o['orders']} orders of the packages give {o['routers']} distinct router digest(s)."
    yield ""


def _note(metrics: Mapping[str, Any]) -> Iterator[str]:
    events = [e for _, found in _levels(metrics) for e in found["events"]]
    if any(e["same_answers"] and not e["same_router"] for e in events):
        yield "If only the router's digest differs, its file has the same entries in another order:"
        yield "level `row` writes the entries of changed columns last."
        yield ""


def _levels(metrics: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the levels, the one that retrains most first."""
    order = ("full", "row", "zero")
    return sorted(metrics["levels"].items(), key=lambda pair: order.index(pair[0]))
