"""Write the metrics of the tiny ranges as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.arithmetic import RANGES
from red_lab.metrics import Metrics

__all__ = ["page"]

NAMES = {
    "backbone": "backbone alone",
    "best_single": "best single expert (chosen on these very rows)",
    "uniform": "uniform weights",
    "sum": "plain sum of all experts, no router",
    "hard": "trained router, hard top-1",
    "mixture": "mixture over the same experts",
    "routed_centroid": "router: nearest centroid",
    "routed_statistics": "router: statistics",
    "routed_evidence": "router: evidence",
    "routed_linear": "router: linear",
    "routed_mlp": "router: MLP",
    "single_adapter": "one adapter, same parameters, all data",
    "oracle": "oracle routing (label-informed)",
    "ceiling": "ceiling: the backbone's blocks adapted on all data",
}


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.tiny-ranges/1``."""
    return "\n".join([*_head(metrics), *_systems(metrics), *_paired(metrics)])


def _head(metrics: Mapping[str, Any]) -> list[str]:
    best_first = sorted(metrics["gate"].items(), key=lambda pair: (-pair[1], pair[0]))
    gate = ", ".join(f"{k} {v:.4f}" for k, v in best_first)
    return [
        "# Five range experts on the tiny backbone",
        "",
        "Written by `redhost lab results` from `metrics.json`; do not edit.",
        "",
        f"Accuracy on {metrics['rows']} held-out ordered pairs of operands, over "
        f"{metrics['splits']} splits. For each split a backbone is built on {metrics['share']:.0%} "
        "of the experts' training pairs. Intervals are 95 %, by bootstrap over unordered pairs.",
        "",
        f"Accuracy of the router kinds on the cards' gate rows: {gate}. The best is the default "
        f"(`{metrics['default_router']}`).",
        "",
    ]


def _systems(metrics: Mapping[str, Any]) -> list[str]:
    names = [n for n, _, _ in RANGES]
    lines = [f"| system | {' | '.join(names)} | overall | 95 % |", "|---" * (len(names) + 3) + "|"]
    for key, name in NAMES.items():
        system = metrics["systems"].get(key)
        if system is None:
            continue
        a = system["accuracy"]
        cells = " | ".join(f"{system['ranges'][n]:.3f}" for n in names)
        lines.append(f"| {name} | {cells} | {a['mean']:.4f} | {a['low']:.4f}–{a['high']:.4f} |")
    return [*lines, ""]


def _paired(metrics: Mapping[str, Any]) -> list[str]:
    lines = ["| paired difference | mean | 95 % |", "|---|---|---|"]
    lines += [
        f"| {name} | {d['mean']:+.4f} | {d['low']:+.4f} … {d['high']:+.4f} |"
        for name, d in metrics["paired"].items()
    ]
    names = [n for n, _, _ in RANGES]
    lines += ["", "Change of the accuracy of each range when one expert is uninstalled and the", ""]
    lines[-1:] = ["router is retrained (points, paired, 95 %):", ""]
    lines += [f"| without | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for left, row in metrics["left_out"].items():
        cells = " | ".join(
            "{mean:+.1f} ({low:+.1f} … {high:+.1f})".format(
                **{k: 100 * v for k, v in row[n].items()}
            )
            for n in names
        )
        lines.append(f"| {left} | {cells} |")
    return [*lines, ""]
