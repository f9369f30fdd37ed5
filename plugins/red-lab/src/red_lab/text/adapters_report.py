"""What the page says of adapters inside the encoder, from their hits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from red_lab.intervals import interval

__all__ = ["adapter_lines", "summarise_adapters"]

TITLES = {
    "heads": "heads above the frozen encoder, `redhost recompose`",
    "heads, oracle": "the same, domain given",
    "adapters": "adapters with heads, `redhost recompose`",
    "adapters, the heads' router": "the same, routed by the sums on the heads' cards",
    "adapters, oracle": "the same, domain given",
    "random adapters": "adapters of shuffled numbers, heads solved anew, `redhost recompose`",
    "random adapters, oracle": "the same, domain given",
    "no expert, ridge": "no expert: ridge regression from the heads' cards",
    "one linear head": "one linear head solved on everybody's rows",
    "one adapter": "one adapter with a head, rank {small}, on everybody's rows",
    "one large adapter": "one adapter with a head, rank {large}, on everybody's rows",
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
"""What has no second pass, and everything else alike."""


def summarise_adapters(
    texts: Sequence[str], points: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return accuracies by the rows of a team, and differences to what has no second pass.

    Args:
        texts: The test rows'.
        points: What `adapters` returns.
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
    """Return the section of a corpus; nothing where adapters were not measured."""
    if not metrics.get("adapters"):
        return []
    points, ranks = metrics["adapters"], metrics["adapter_ranks"]
    sizes = [f"{p['rows']} rows a team" for p in points]
    lines = [
        "LoRA adapters in the top half of the blocks, each with a head, as `redhost new-expert "
        f"--form lora` trains them (rank {ranks['small']}, ten epochs at most), beside heads on "
        "the frozen features. Both learn from the same rows; a quarter goes to the cards, half of "
        "that to routers. Heads' cards also show routers the sums of all rows but those that "
        "compositions are judged on; adapters' cards are texts and carry no sums. One seed. In "
        "brackets: points gained over the same without the second pass (heads under the same "
        "routing; of one adapter, the linear head):",
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
    """Say whether the second pass is worth anything where the domain is known, and where not."""
    known, routed = (point["systems"][n]["gained"] for n in ("adapters, oracle", "adapters"))
    return (
        f"- With {point['rows']} rows a team: {_worth(known)} where the domain is known, "
        f"{_worth(routed)} as routed."
    )


def _worth(gained: Mapping[str, float]) -> str:
    if gained["low"] > 0:
        return "adapters are better than heads"
    return "heads are better than adapters" if gained["high"] < 0 else "no difference shows"
