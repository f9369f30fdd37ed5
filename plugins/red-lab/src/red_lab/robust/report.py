"""Write the page of `redhost lab robust` from its metrics."""

from __future__ import annotations

from red_lab.metrics import Metrics
from red_lab.rendering import render

__all__ = ["page"]


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.robust/1``."""
    uneven = dict(metrics["tasks"])
    finite = uneven.pop("finite", None)
    return render("robust", metrics, finite=finite, uneven=uneven)
