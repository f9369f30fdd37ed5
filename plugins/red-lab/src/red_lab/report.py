"""Write the metrics of the tiny ranges as a page."""

from __future__ import annotations

from red_lab.arithmetic import RANGES
from red_lab.metrics import Metrics, render

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
    ranges = [name for name, _, _ in RANGES]
    return render("tiny-ranges", metrics, names=NAMES, ranges=ranges)
