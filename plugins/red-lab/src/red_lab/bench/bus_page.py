"""Render the tables and the figure of the section on the bus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

__all__ = ["TARGET", "draw", "page"]

TARGET = 0.01
"""Target: overhead of the bus over the backbone's forward pass."""


def page(found: Mapping[str, Any]) -> str:
    """Return the section's tables."""
    lines = [
        "Time of the bus relative to the backbone's forward pass. The two are timed separately and "
        "in turn; shares are ratios of medians, with the quartiles of the ratios by round in "
        f"brackets. Threads: {found['threads']}. Experts are random, with a quarter of the width "
        "as rank; texts are real and of one length; the bus includes the classifier. Sparse "
        "routers have random weights, so the rows of a batch use as many different experts as "
        "possible. Memory is that of all parameters and buffers. Measured on a CPU: no GPU was "
        "available, so the pass `gathered` was not measured on the device it is intended for. "
        f"The target is {TARGET:.0%}.",
    ]
    for name, measured in found["backbones"].items():
        lines += ["", *_table(name, measured)]
    return "\n".join([*lines, "", "![Share of the forward by idle experts](bus.svg)"])


def _table(name: str, measured: Mapping[str, Any]) -> Iterator[str]:
    batches = sorted({r["batch"] for r in measured["rows"]})
    cells = {(r["router"], r["experts"], r["batch"]): r for r in measured["rows"]}
    floors = ", ".join(
        f"{1000 * cells[_first(measured, b)]['backbone_seconds']['median']:.1f} ms at batch {b}"
        for b in batches
    )
    size = f"D {measured['width']}, R {measured['rank']}, T {measured['tokens']}"
    yield f"**{name}** ({size}): the backbone's forward pass takes"
    yield f"{floors}."
    yield ""
    yield f"| router | experts | {' | '.join(f'batch {b}' for b in batches)} | tensors |"
    yield "|---" * (3 + len(batches)) + "|"
    for router, experts in dict.fromkeys((r["router"], r["experts"]) for r in measured["rows"]):
        row = [cells[router, experts, b] for b in batches]
        shares = " | ".join(_share(r["share"]) for r in row)
        yield f"| `{router}` | {experts:,} | {shares} | {row[0]['bytes'] / 2**20:,.1f} MiB |"


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """Write bus.svg: the share by the number of experts, two of them active."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    backbones = found["backbones"]
    with mpl.rc_context({"svg.hashsalt": "bus", "font.size": 9}):
        figure, axes = plt.subplots(
            1, len(backbones), figsize=(8, 3.2), layout="constrained", squeeze=False, sharey=True
        )
        for ax, (name, measured) in zip(axes[0], backbones.items(), strict=True):
            _curves(ax, measured["rows"])
            ax.axhline(TARGET, color="black", linewidth=0.8, linestyle="--")
            ax.set(title=name, xscale="log", yscale="log", xlabel="experts, two active")
        axes[0][0].set_ylabel("bus, of the backbone's forward")
        axes[0][0].legend(fontsize=7)
        figure.savefig(folder / "bus.svg", metadata={"Date": None})
        plt.close(figure)


def _curves(ax: Any, rows: list[dict[str, Any]]) -> None:
    """Draw a line for each router and batch, and its quartiles."""
    sparse = [r for r in rows if "k=" in r["router"]]
    styles = dict(zip(dict.fromkeys(r["router"] for r in sparse), ("o-", "s:"), strict=False))
    for n, batch in enumerate(sorted({r["batch"] for r in sparse})):
        for router, style in styles.items():
            own = [r for r in sparse if (r["router"], r["batch"]) == (router, batch)]
            own.sort(key=lambda r: int(r["experts"]))
            x = [r["experts"] for r in own]
            label = f"{router}, batch {batch}"
            ax.plot(x, [r["share"]["ratio"] for r in own], style, color=f"C{n}", label=label)
            bounds = [[r["share"][end] for r in own] for end in ("low", "high")]
            ax.fill_between(x, *bounds, color=f"C{n}", alpha=0.2)


def _first(measured: Mapping[str, Any], batch: int) -> tuple[str, int, int]:
    row = next(r for r in measured["rows"] if r["batch"] == batch)
    return row["router"], row["experts"], batch


def _share(overhead: Mapping[str, float]) -> str:
    return f"{overhead['ratio']:.2%} ({overhead['low']:.2%}–{overhead['high']:.2%})"
