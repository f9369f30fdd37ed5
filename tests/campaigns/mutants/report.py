"""Write the metrics of `make mutants` as a page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from red_lab.metrics import Metrics

__all__ = ["page"]

MIB = 2**20


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.mutants/1``."""
    return "\n".join([*_head(metrics), *_targets(metrics), *_limits(metrics)])


def _head(metrics: Mapping[str, Any]) -> Iterator[str]:
    found, seconds, memory = metrics["outcomes"], metrics["seconds"], metrics["memory"]
    bad = found["crash"] + found["hang"] + found["memory"]
    yield "# Broken copies of a good expert"
    yield ""
    yield "Written by `make mutants` from `metrics.json`; do not edit."
    yield ""
    yield (
        f"{metrics['count']:,} mutants of {metrics['kinds_judged']} kinds (seed "
        f"{metrics['seed']}), made from three small experts whose cards contain texts, vectors and "
        "sums. Each mutant is checked as when a host attaches an expert, canary included, in a "
        "process of its own, against the digest that a composition names."
    )
    yield ""
    yield (
        f"**{bad} crashes, hangs or breaches of the memory limit.** {found['refused']:,} mutants "
        f"break a rule of the contract and are refused for it. {found['refused by digest']:,} "
        "break no rule (for example a different licence, or a canary changed within its tolerance) "
        f"and are refused because their digest differs. {found['same']:,} load with the same "
        "digest: they change something outside the expert, such as RECORD, or happen to change "
        "nothing."
    )
    yield ""
    most = "not measured here" if memory["most"] is None else f"{memory['most'] / MIB:.0f} MiB"
    yield (
        f"Seconds per decision: median {seconds['median']:.4f}, 99th percentile "
        f"{seconds['p99']:.4f}, maximum {seconds['most']:.3f}, limit {seconds['limit']:.0f}. "
        f"Largest memory that a decision added: {most}; the limit is the mutant's size plus "
        f"{memory['limit_beyond_size'] // MIB} MiB."
    )
    yield ""


def _targets(metrics: Mapping[str, Any]) -> Iterator[str]:
    names = list(metrics["outcomes"])
    yield f"| what was broken | mutants | {' | '.join(names)} |"
    yield "|---" * (len(names) + 2) + "|"
    for target, found in metrics["targets"].items():
        cells = " | ".join(f"{found[name]:,}" for name in names)
        yield f"| {target} | {sum(found.values()):,} | {cells} |"
    yield ""
    yield "Codes of the refusals:"
    yield ""
    yield "| code | mutants |"
    yield "|---|---|"
    for code, count in sorted(metrics["codes"].items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"| `{code}` | {count:,} |"
    yield ""


def _limits(metrics: Mapping[str, Any]) -> Iterator[str]:
    limits = metrics["limits"]
    yield "## The most expensive files"
    yield ""
    yield (
        "Each row is a whole package that contains this file, with a manifest that matches it if "
        f"possible. Seconds are those of the fastest of {limits['runs']} runs, memory is the "
        "largest amount added."
    )
    yield ""
    yield "| file | MiB | seconds | limit | memory, MiB | code |"
    yield "|---|---|---|---|---|---|"
    for row in limits["files"]:
        memory = "" if row["memory"] is None else f"{row['memory'] / MIB:.0f}"
        yield (
            f"| {row['file']} | {row['bytes'] / MIB:.1f} | {row['seconds']:.3f} | {row['limit']:g} "
            f"| {memory} | `{row['code']}` |"
        )
    yield ""
