"""Render the tables of the section on growth, with fitted exponents."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["exponent", "page"]

LAST = 3
"""Number of largest points to which an exponent is fitted."""

COLUMNS = {
    "solve": "solving the router, s",
    "query": "one query, ms",
    "sums": "computing one card's sums, s",
    "answer": "answering the rows, s",
    "bytes": "router and experts, MiB",
    "card": "one card's sums, MiB",
}


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the slope of log cost over log size, through the largest points.

    Args:
        points: Sizes and costs, ascending.
    """
    x, y = zip(*[(math.log(a), math.log(b)) for a, b in points[-LAST:]], strict=True)
    middle, level = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - middle) * (b - level) for a, b in zip(x, y, strict=True))
    return float(above / sum((a - middle) ** 2 for a in x))


def page(found: Mapping[str, Any]) -> str:
    """Return the section's tables."""
    base = {name: f"{value:,}" for name, value in found["base"].items()}
    lines = [
        f"Router `ridge`, linear experts, random weights, {found['threads']} thread. Each table "
        "varies one size; the others are {experts} experts of {labels} labels each, width {width} "
        "of h, {rows} rows. ".format(**base)
        + f"The last line is the exponent, fitted to the {LAST} largest points: 1 is linear.",
    ]
    for axis, points in found["axes"].items():
        title = "labels of each expert" if axis == "labels" else axis
        lines += ["", f"| {title} | {' | '.join(COLUMNS.values())} |", "|---" * 7 + "|"]
        lines += [
            f"| {p['at']:,} | {' | '.join(map(_cell, COLUMNS, _values(p)))} |" for p in points
        ]
        each = zip(*map(_values, points), strict=True)
        slopes = [
            exponent([(p["at"], v) for p, v in zip(points, some, strict=True)]) for some in each
        ]
        lines.append(f"| exponent | {' | '.join(f'{s:z.2f}' for s in slopes)} |")
    read = [(p["at"], p["seconds"]["median"]) for p in found["read"]]
    seconds = ", ".join(f"{n:,} in {s:.2f} s" for n, s in read)
    lines += ["", f"Texts encoded by the tiny backbone: {seconds}; exponent {exponent(read):z.2f}."]
    return "\n".join(lines)


def _values(point: Mapping[str, Any]) -> list[float]:
    return [point[n] if n in {"bytes", "card"} else point[n]["median"] for n in COLUMNS]


def _cell(name: str, value: float) -> str:
    if name in {"bytes", "card"}:
        return f"{value / 2**20:,.2f}"
    return f"{1000 * value:.2f}" if name == "query" else f"{value:.4f}"
