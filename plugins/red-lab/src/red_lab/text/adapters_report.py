"""Summarise adapters inside the encoder, and render their section of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from red_lab.intervals import interval

__all__ = ["adapter_lines", "summarise_adapters"]

TITLES = {
    "heads": "heads on the frozen encoder, `redhost recompose`",
    "heads, oracle": "the same, oracle routing",
    "adapters": "adapters with heads, `redhost recompose`",
    "adapters, the heads' router": "the same, routed by the sums on the heads' cards",
    "adapters, oracle": "the same, oracle routing",
    "random adapters": "adapters with shuffled parameters, heads solved again, `redhost recompose`",
    "random adapters, oracle": "the same, oracle routing",
    "no expert, ridge": "no expert: ridge regression from the heads' cards",
    "one linear head": "one linear head, closed form, pooled rows",
    "one adapter": "one adapter with a head, rank {small}, pooled rows",
    "one large adapter": "one adapter with a head, rank {large}, pooled rows",
}
AGAINST = {
    "adapters": "heads",
    "adapters, the heads' router": "heads",
    "adapters, oracle": "heads, oracle",
    "random adapters": "heads",
    "random adapters, oracle": "heads, oracle",
    "one adapter": "one linear head",
    "one large adapter": "one linear head",
}
"""System with adapters → the same system without the second pass."""


def summarise_adapters(
    texts: Sequence[str], points: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return accuracies by rows per team, and differences to the systems without a second pass.

    Args:
        texts: The texts of the test rows.
        points: The results of `adapters`.
    """
    found = []
    for point in points:
        values = {name: np.array(point["hits"][name]) for name in TITLES}
        systems: dict[str, dict[str, Any]] = {}
        for name, right in values.items():
            systems[name] = {"accuracy": float(right.mean())}
            if name in AGAINST:
                more = right - values[AGAINST[name]]
                low, high = interval(more, texts)
                systems[name]["gained"] = {"mean": float(more.mean()), "low": low, "high": high}
        learnt = sum(point["learnt"].values())
        found.append({"rows": point["rows"], "learnt": learnt, "systems": systems})
    return found


def adapter_lines(metrics: Mapping[str, Any]) -> list[str]:
    """Return the section of a corpus; empty if adapters were not measured."""
    if not metrics.get("adapters"):
        return []
    points, ranks = metrics["adapters"], metrics["adapter_ranks"]
    sizes = [f"{p['rows']} rows per team" for p in points]
    lines = [
        "LoRA adapters in the top half of the blocks, each with a head, compared with heads on the "
        "frozen features. The adapters are trained as by `redhost new-expert --form lora` (rank "
        f"{ranks['small']}, ten epochs at most). Both use the same rows; a quarter of them goes to "
        "the cards, half of that quarter to training the router. Cards of heads also contain the "
        "sums of all rows except the gate rows; cards of adapters are texts and contain no sums. "
        "One seed. In brackets: the gain, in percentage points, over the same system without the "
        "second pass (heads under the same routing; for the single adapters, the linear head):",
        "",
        f"| system | {' | '.join(sizes)} |",
        f"|---|{'---|' * len(sizes)}",
    ]
    for name, title in TITLES.items():
        cells = (_cell(p["systems"][name]) for p in points)
        lines.append(f"| {title.format(**ranks)} | {' | '.join(cells)} |")
    return [*lines, "", *(_conclusion(p) for p in points), ""]


def _cell(system: Mapping[str, Any]) -> str:
    return f"{system['accuracy']:.3f}{_gained(system)}"


def _gained(system: Mapping[str, Any]) -> str:
    if "gained" not in system:
        return ""
    x = {k: 100 * v for k, v in system["gained"].items()}
    return f" ({x['mean']:+.1f}, {x['low']:+.1f} … {x['high']:+.1f})"


def _conclusion(point: Mapping[str, Any]) -> str:
    """Return whether the second pass gains accuracy, under oracle routing and as routed."""
    known, routed = (point["systems"][n]["gained"] for n in ("adapters, oracle", "adapters"))
    return (
        f"- With {point['rows']} rows per team: {_worth(known)} under oracle routing, "
        f"{_worth(routed)} under the router."
    )


def _worth(gained: Mapping[str, float]) -> str:
    if gained["low"] > 0:
        return "adapters are better than heads"
    return "heads are better than adapters" if gained["high"] < 0 else "no clear difference"
