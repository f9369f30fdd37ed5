"""Draw every system's overhead over the plain forward pass."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["draw"]

SHOWN = (
    "redhost bus",
    "peft one",
    "peft five",
    "peft mixed",
    "x-lora",
    "adapters average",
    "adapters fuse",
)
LEAST = 1e-4
"""Lower end of the logarithmic axis: systems no slower than the floor are drawn here."""


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """Write peers.svg: a group of bars for each system, a bar for each batch."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    with mpl.rc_context({"svg.hashsalt": "peers", "font.size": 9}):
        figure, axes = plt.subplots(
            1, len(found["forward"]), figsize=(9, 3.6), layout="constrained", sharey=True
        )
        for ax, (name, measured) in zip(axes, found["forward"].items(), strict=True):
            _bars(ax, {**measured["systems"], **measured["hub"]})
            ax.set(title=name, yscale="log")
        axes[0].set_ylabel("overhead, of the plain forward")
        axes[0].legend()
        figure.savefig(folder / "peers.svg", metadata={"Date": None})
        plt.close(figure)


def _bars(ax: Any, systems: Mapping[str, Any]) -> None:
    """Draw the bars of one backbone."""
    batches = sorted(systems["floor"], key=int)
    for n, batch in enumerate(batches):
        heights = [max(systems[s][batch]["overhead"]["ratio"], LEAST) for s in SHOWN]
        places = [i + (n - 1) * 0.27 for i in range(len(SHOWN))]
        ax.bar(places, heights, width=0.25, label=f"batch {batch}")
    ax.set_xticks(range(len(SHOWN)), SHOWN, rotation=30, ha="right")
