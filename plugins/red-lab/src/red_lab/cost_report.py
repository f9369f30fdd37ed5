"""Write the metrics of `redhost lab cost` as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from red_lab.metrics import Metrics

__all__ = ["page"]


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.cost/1``."""
    runs = sorted(metrics["runs"].values(), key=lambda r: -r["parameters"]["trunk"])
    lines = [*_head(), *_parameters(runs), *_routers(runs), *_seconds(runs), *_memory(runs)]
    return "\n".join(lines)


def _head() -> list[str]:
    return [
        "# Cost of experts and router",
        "",
        "Written by `redhost lab cost` from `metrics.json`; do not edit.",
        "",
        "Backbones have full size and random weights, since parameters, seconds and memory",
        "depend only on shapes. Experts have the residual form in hidden space. The shared",
        "classifier over 99 answers is part of the backbone. Percentages are of the trunk.",
        "",
    ]


def _parameters(runs: list[dict[str, Any]]) -> Iterator[str]:
    yield "| backbone | D | blocks | trunk | classifier | experts | parameters of experts |"
    yield "|---" * 7 + "|"
    for r in _once(runs):
        p = r["parameters"]
        yield (
            f"| {r['config']} | {r['width']} | {r['blocks']} | {p['trunk']:,} "
            f"| {p['classifier']:,} | {r['experts']} of rank {r['rank']} "
            f"| {p['experts']:,} = {_percent(p['experts'], p['trunk'])} |"
        )
    yield ""


def _routers(runs: list[dict[str, Any]]) -> Iterator[str]:
    yield "Parameters that a router adds, with one column per expert and one for the backbone."
    yield "Routers in closed form contain D × D matrices. `evidence`, the default, has one per"
    yield "column and one more, so on a wide backbone it has more parameters than the experts."
    yield ""
    yield "| backbone | router | its parameters | experts and router |"
    yield "|---|---|---|---|"
    for r in _once(runs):
        p = r["parameters"]
        for kind, count in sorted(p["routers"].items(), key=lambda pair: pair[1]):
            both = _percent(p["experts"] + count, p["trunk"])
            yield (
                f"| {r['config']} | `{kind}` | {count:,} = {_percent(count, p['trunk'])} | {both} |"
            )
    yield ""


def _seconds(runs: list[dict[str, Any]]) -> Iterator[str]:
    for r in runs:
        times = r["times_trunk"]
        yield (
            f"**{r['config']} on {r['device']}** ({_place(r['machine'])}, threads used: "
            f"{r['threads']}): {r['queries']} queries "
            f"of {r['tokens']} tokens in batches of {r['batch']}, the median of {r['rounds']} "
            "rounds. Shares are computed within each round, since timings are noisy."
        )
        yield ""
        yield "| part | seconds per 1,000 queries | share of the trunk's time |"
        yield "|---|---|---|"
        for name in sorted(times, key=lambda n: (not n.startswith("trunk"), n)):
            seconds = r["seconds_per_1000"][name]
            yield f"| {_title(name)} | {seconds:.3g} | {_share(times[name])} |"
        yield ""


def _memory(runs: list[dict[str, Any]]) -> Iterator[str]:
    yield "Peak memory in MiB: on a CPU of the whole process, including libraries and start-up"
    yield "data; on CUDA of tensors only."
    yield ""
    yield "| backbone | before | with the trunk's weights | after a pass | with buses and rounds |"
    yield "|---" * 5 + "|"
    for r in runs:
        cells = [_mib(r["peak_bytes"][k]) for k in ("start", "weights", "trunk", "all")]
        yield f"| {r['config']} on {r['device']} | {' | '.join(cells)} |"
    yield ""


def _once(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one run for each shape: parameters are the same on every device."""
    shapes = {(r["config"], r["experts"], r["rank"]): r for r in runs}
    return list(shapes.values())


def _title(name: str) -> str:
    system, _, kind = name.partition(" ")
    if system == "bus":
        return f"bus, router `{kind}`"
    return "trunk, bfloat16 autocast" if kind else "trunk, float32"


def _place(machine: Mapping[str, Any]) -> str:
    return f"{machine['device']}, {machine['cores']} cores, torch {machine['torch']}"


def _share(ratio: float) -> str:
    return f"{ratio:.2%}" if ratio < 0.1 else f"{ratio:.0%}"  # noqa: PLR2004  (three digits)


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.2%}"


def _mib(value: int | None) -> str:
    return "" if value is None else f"{value / 2**20:,.0f}"
