"""Write the metrics of `redhost lab red` as a page with figures."""

from __future__ import annotations

from red_lab.metrics import Metrics, render
from red_lab.red.advantages import advantages, spread
from red_lab.red.claims import claims
from red_lab.red.experts import NAMES
from red_lab.red.measure import SHARES
from red_lab.red.queries import RULE
from red_lab.red.summary import earlier_rule

__all__ = ["page"]

ABLATIONS = {
    "rank": "Rank of every expert; experts are trained separately for each rank",
    "nested": "Nested ranks: experts are trained once, then truncated to a rank",
    "recipe": "Training recipe of experts and router",
    "noise": "A router trained with noise of variance p · abs(z); noisy z has p = 0.5",
}


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.red/2``."""
    return render(
        "red",
        metrics,
        earlier=earlier_rule(metrics),
        rule=RULE,
        ranges=NAMES,
        flips=SHARES,
        claims=[*claims(metrics), *advantages(metrics)],
        spread=spread,
        titles=ABLATIONS,
    )
