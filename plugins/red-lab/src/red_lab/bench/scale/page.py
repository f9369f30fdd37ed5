"""Render the tables and the figure of the section on scale."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["draw", "page"]


def page(found: Mapping[str, Any]) -> str:
    """Return the section's tables."""
    points = sorted(((int(n), p) for n, p in found["points"].items()), key=lambda pair: pair[0])
    parts = [_costs(points), _accuracy(points), _queries(points), _more(found["one_more"])]
    return "\n\n".join(parts)


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """Draw seconds, memory and a query's cost against the number of experts."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "scale"
    counts = sorted(map(int, found["points"]))
    points = [found["points"][str(n)] for n in counts]
    figure, (seconds, memory, query) = plt.subplots(1, 3, figsize=(11, 3.2))
    for name in ("cold", "warm", "row"):
        seconds.loglog(counts, [p["seconds"][name] for p in points], "o-", label=name)
    seconds.set_ylabel("seconds to recompose")
    seconds.legend()
    memory.semilogx(counts, [p["peak_gib"] for p in points], "o-")
    memory.set_ylabel("peak memory, GiB")
    memory.set_ylim(bottom=0)
    for batch in points[0]["query_ms"]:
        ratios = [p["query_ms"][batch]["bus"] / p["query_ms"][batch]["backbone"] for p in points]
        query.semilogx(counts, ratios, "o-", label=f"batch {batch}")
    query.set_ylabel("bus / backbone, a query")
    query.set_ylim(bottom=0)
    query.legend()
    for axes in (seconds, memory, query):
        axes.set_xlabel("experts")
    figure.tight_layout()
    figure.savefig(folder / "scale.svg", metadata={"Date": None})
    plt.close(figure)


def _costs(points: list[tuple[int, Any]]) -> str:
    lines = [
        "| experts | cold caches, s (CPU) | steps of the receipt: `learn` | `train` | `judge` "
        "| `digests` | outside the receipt | feature cache warm, s (CPU) | level row, s (CPU) "
        "| peak memory, GiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for n, p in points:
        steps = p["steps"]["cold"]
        cells = " | ".join(f"{steps[s]:.1f}" for s in ("learn", "train", "judge", "digests"))
        cold, warm, row = (_both(p, name) for name in ("cold", "warm", "row"))
        lines.append(
            f"| {n:,} | {cold} | {cells} | {p['outside_receipt']:.1f} | {warm} | {row} "
            f"| {p['peak_gib']:.2f} |"
        )
    moved = [n for n, p in points if not (p["unchanged"] and p["same_answers"])]
    held = "After recomposing again, weights are unchanged and answers bitwise identical"
    lines += ["", f"{held}: {'at every point' if not moved else f'not with {moved} experts'}."]
    return "\n".join(lines)


def _accuracy(points: list[tuple[int, Any]]) -> str:
    lines = [
        "| experts | test rows | router | own expert has largest weight | among the two largest |",
        "|---|---|---|---|---|",
    ]
    for n, p in points:
        for kind, tops in p["test"]["own_expert"].items():
            lines.append(
                f"| {n:,} | {p['test']['rows']:,} | {kind} | {tops['top1']:.3f} "
                f"| {tops['top2']:.3f} |"
            )
    lines += [
        "",
        "| experts | accuracy: routed | oracle routing | backbone |",
        "|---|---|---|---|",
    ]
    for n, p in points:
        answers = p["test"]["answers"]
        cells = " | ".join(f"{answers[s]:.3f}" for s in ("routed", "oracle", "backbone"))
        lines.append(f"| {n:,} | {cells} |")
    return "\n".join(lines)


def _queries(points: list[tuple[int, Any]]) -> str:
    lines = [
        "| experts | batch | backbone, ms | bus, ms | bus / backbone |",
        "|---|---|---|---|---|",
    ]
    for n, p in points:
        for batch, ms in p["query_ms"].items():
            ratio = ms["bus"] / ms["backbone"]
            lines.append(
                f"| {n:,} | {batch} | {ms['backbone']:.2f} | {ms['bus']:.2f} | {ratio:.3f} |"
            )
    return "\n".join(lines)


def _more(more: Mapping[str, Any]) -> str:
    lines = [
        "| adding an expert to 1,000: level | attach, s (CPU) | columns changed | unchanged "
        "answers in other domains | rollback, s | bitwise identical after rollback |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {m['level']} | {_both(m, 'attach')} | {m['moved']} | {m['same_labels']:.4f} "
        f"| {m['seconds']['rollback']:.2f} | {'yes' if m['back_again'] else 'NO'} |"
        for m in more.values()
    ]
    return "\n".join(lines)


def _both(point: Mapping[str, Any], name: str) -> str:
    """Return wall-clock seconds and CPU seconds."""
    return f"{point['seconds'][name]:.1f} ({point['cpu'][name]:.1f})"
