"""Write the metrics of `redhost lab cost` as a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from red_lab.metrics import Metrics
from red_lab.rendering import render

__all__ = ["page"]


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.cost/1``."""
    runs = sorted(metrics["runs"].values(), key=lambda r: -r["parameters"]["trunk"])
    # Parameters are the same on every device.
    shapes = {(r["config"], r["experts"], r["rank"]): r for r in runs}
    return render("cost", {}, runs=runs, shapes=[*shapes.values()], titles=_titles)


def _titles(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the titles of the parts that were timed, the trunk's passes first."""
    names = sorted(run["times_trunk"], key=lambda n: (not n.startswith("trunk"), n))
    return {name: _title(name) for name in names}


def _title(name: str) -> str:
    system, _, kind = name.partition(" ")
    if system == "bus":
        return f"bus, router `{kind}`"
    return "trunk, bfloat16 autocast" if kind else "trunk, float32"
