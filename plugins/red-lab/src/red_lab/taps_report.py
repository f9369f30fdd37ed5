"""Write the metrics of `redhost lab taps` as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["page"]


def page(metrics: Mapping[str, Any]) -> str:
    """Return the page for metrics of the schema ``red-lab.taps/1``."""
    places = metrics["places"]
    domains = list(next(iter(places.values()))["domains"])
    head = ["place", "alone", "less the twin, points", *domains, "composed", "routed home"]
    head += ["parameters", "seconds"]
    lines = [
        "# Experts that tap the trunk",
        "",
        "Written by `redhost lab taps` from `metrics.json`; do not edit.",
        "",
        "Every range expert of the shipped tiny backbone (four blocks, 0 … 3), trained at each "
        f"place for {metrics['epochs']} epochs with the same settings, packaged, and composed with "
        f"the four other shipped experts. {metrics['rows']} unseen operand pairs in order: `alone` "
        "is each row answered by its own expert at weight 1 (95 % by bootstrap over pairs), "
        "`composed` the routed composition with that one expert replaced, the mean over experts.",
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
