"""Write the page of `redhost lab matched` from its metrics."""

from __future__ import annotations

from red_lab.matched.train import EVIDENCE, RED
from red_lab.metrics import Metrics
from red_lab.rendering import render

__all__ = ["page"]


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.matched/1``."""
    return render("matched", metrics, red=RED, evidence=EVIDENCE)
