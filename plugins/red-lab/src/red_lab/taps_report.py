"""Write the metrics of `redhost lab taps` as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["page"]


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.taps/1``."""
    places = metrics["places"]
    domains = list(next(iter(places.values()))["domains"])
    head = ["place", "alone", "minus the bus, points", *domains, "composed", "routed correctly"]
    head += ["parameters", "seconds"]
    lines = [
        "# Experts that read or write inside the trunk",
        "",
        "Written by `redhost lab taps` from `metrics.json`; do not edit.",
        "",
        "Every range expert of the shipped tiny backbone (four blocks, 0 … 3) is trained at each "
        f"place for {metrics['epochs']} epochs with the same settings, packaged, and composed with "
        "the four other shipped experts. `the bus` is the usual place, at the end of the trunk. "
        f"Accuracy on {metrics['rows']} held-out ordered pairs of operands: `alone` means that "
        "each row is answered by its own expert at weight 1 (95 % by bootstrap over pairs), "
        "`composed` is the routed composition with this one expert replaced, the mean over "
        "experts. `routed correctly` is the share of the expert's own rows on which it has the "
        "largest weight.",
        "",
        f"| {' | '.join(head)} |",
        "|---" * len(head) + "|",
    ]
    for name, p in places.items():
        a, d = p["alone"], p["less the twin"]
        cells = [
            name,
            f"{a['mean']:.3f} ({a['low']:.3f}–{a['high']:.3f})",
            f"{100 * d['mean']:+.1f} ({100 * d['low']:+.1f} … {100 * d['high']:+.1f})",
            *(f"{p['domains'][n]:.3f}" for n in domains),
            f"{p['composed']:.3f}",
            f"{p['routed']:.3f}",
            f"{p['parameters']:,}",
            f"{p['seconds']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])
