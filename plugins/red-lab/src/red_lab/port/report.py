"""Run the study pair by pair, and write what came out as metrics and as a page."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from red_lab.metrics import Metrics, cached_json, read_metrics, write_results
from red_lab.port import adapters, sums
from red_lab.port.measure import measure_bad, measure_pair
from red_lab.port.subjects import JUDGE, LEARN, PAIRS, TOKENS
from red_lab.port.versions import MOVED
from redhost.core.training.porting import SHARE

__all__ = ["page", "retained", "run"]

DRAWS = 2000

SYSTEMS = {
    "own": "the expert on its old backbone",
    "ported": "**ported: a map from its card's texts and the background**",
    "ported, texts of the domains": "ported, up to 2,000 texts that teams learn from, unlabelled",
    "retrained": "retrained on the new backbone, on all its author's rows",
    "no map": "no map: the expert reads the new backbone as if it were the old",
    "random weights": "ported, its author's weights shuffled",
    "one answer": "one answer to all",
}


def run(names: Sequence[str], *, seeds: int, validation: bool, out: Path, work: Path) -> Path:
    """Measure pairs, and write their metrics beside those of others, with a page of them all.

    Args:
        names: Parts of the names of pairs; none are all of them, bad encoders and adapters too.
        seeds: Of the authors' training.
        validation: Judge on training rows set aside; test files are not opened.
        out: Where the results go.
        work: Where packages, features and finished steps are kept.
    """
    part = "validation" if validation else "test"
    found = {"pairs": {}} | read_metrics(out)
    for name, pair in PAIRS.items():
        if names and not any(n in name for n in names):
            continue
        measured = [
            cached_json(
                work / part / f"{pair.old}-{pair.new}-{pair.corpus}-{seed}.json",
                partial(measure_pair, pair, seed=seed, validation=validation, work=work),
            )
            for seed in range(seeds)
        ]
        found["pairs"][name] = {"title": pair.title, **summarise(measured)}
    parts = {"bad": measure_bad, "sums": sums.measure, "adapters": adapters.measure}
    for name, measure in parts.items():
        if not names or name in names:
            make = partial(measure, work=work, validation=validation)
            found[name] = cached_json(work / part / f"{name}.json", make)
    found |= {"schema": "red-lab.port/1", "validation": validation, "moved": _moved()}
    return write_results(found, out, page=page)


def _moved() -> dict[str, Any]:
    return {name: {"steps": how.steps, "batch": how.batch} for name, how in MOVED.items()}


def summarise(measured: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return accuracies and kept shares over seeds, with intervals over texts."""
    texts = measured[0]["texts"]
    hits = {
        name: np.array([m["hits"][name] for m in measured]).mean(0) for name in measured[0]["hits"]
    }
    experts = [e for m in measured for e in m["experts"]]
    return {
        "rows": len(texts),
        "seeds": len(measured),
        "accuracy": {name: float(values.mean()) for name, values in hits.items()},
        "retained": {
            name: retained(hits[name], hits["retrained"], hits["one answer"])
            for name in hits
            if name not in {"retrained", "one answer"}
        },
        "experts": experts,
        "seconds": float(np.median([s for m in measured for s in m["seconds"]])),
        "most seconds": max(s for m in measured for s in m["seconds"]),
        "encode": measured[0]["encode"],
    }


def retained(system: Any, retrained: Any, nothing: Any) -> dict[str, float]:
    """Return which share of retraining's gain a system has, and its 95 %, rows drawn again.

    Args:
        system: Hits, row by row, ``(N,)``.
        retrained: The same of an expert that was retrained.
        nothing: The same of one answer to all.
    """
    rng = np.random.default_rng(0)
    drawn = rng.integers(len(system), size=(DRAWS, len(system)))
    gains = [(x - nothing)[drawn].mean(1) for x in (system, retrained)]
    low, high = np.quantile(gains[0] / gains[1], [0.025, 0.975])
    share = float((system - nothing).mean() / (retrained - nothing).mean())
    return {"share": share, "low": float(low), "high": float(high)}


def page(found: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.port/1``."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Metrics) -> Iterator[str]:
    yield "# Experts on a new base model"
    yield ""
    yield from _prose(
        "Written by `redhost lab port` from `metrics.json`; do not edit. Every expert is trained "
        "by its author's path on the old backbone and carried over by `redhost port`; no weight of "
        f"it changes. Each team has {LEARN} texts to learn from and {JUDGE} to be judged on, cut "
        f"after {TOKENS} tokens; it answers its own rows alone, so that no router has a part in "
        "the figures. Kept is (accuracy − one answer to all) / (accuracy retrained − one answer to "
        "all), its interval from drawing the rows again."
        + (" Judged on training rows set aside." if found["validation"] else "")
    )
    for name in PAIRS:
        if name in found["pairs"]:
            yield ""
            yield from _pair(name, found["pairs"][name])
    if "bad" in found:
        yield ""
        yield from _bad(found["bad"])
    for part, section in (("sums", sums.lines), ("adapters", adapters.lines)):
        if part in found:
            yield ""
            yield from section(found[part])
    yield ""
    yield from _limits(found)


def _prose(text: str) -> list[str]:
    return textwrap.wrap(text, 98)


def _pair(name: str, pair: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {name}"
    yield ""
    seeds = f", {pair['seeds']} seeds" if pair["seeds"] > 1 else ""
    yield from _prose(f"The new one is {pair['title']}. {pair['rows']:,} rows{seeds}.")
    yield ""
    yield "| | accuracy | kept of what retraining gives |"
    yield "|---|---|---|"
    for system, title in SYSTEMS.items():
        if system in pair["accuracy"]:
            yield f"| {title} | {pair['accuracy'][system]:.3f} | {_retained(pair, system)} |"
    experts = pair["experts"]
    for key, which in (("share", "its card's texts"), ("wider", "the teams' texts")):
        accepted = sum(e[key] >= SHARE for e in experts)
        yield ""
        yield from _prose(
            f"Judged on the gate rows of its card against its old self, with {which}: "
            f"{accepted} of {len(experts)} are let through."
        )
    yield ""
    spent = " and ".join(f"{1000 * s:.0f} ms on {b}" for b, s in sorted(pair["encode"].items()))
    yield from _prose(
        f"A port takes {pair['seconds']:.1f} CPU seconds at the median and "
        f"{pair['most seconds']:.1f} at most, the first of which encodes the background; one text "
        f"takes {spent}. "
        f"The map misses {_mean(experts, 'unexplained'):.0%} of the variance of the old vectors."
    )


def _retained(pair: Mapping[str, Any], system: str) -> str:
    if system not in pair["retained"]:
        return ""
    k = pair["retained"][system]
    return f"{k['share']:.1%} ({k['low']:.1%} … {k['high']:.1%})"


def _mean(experts: Sequence[Mapping[str, Any]], key: str) -> float:
    return float(np.mean([e[key] for e in experts]))


def _bad(found: Mapping[str, Any]) -> Iterator[str]:
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for name, row in found.items():
        kinds.setdefault(name.rpartition(", ")[0] or name, []).append(row)
    yield "## Encoders that know less"
    yield ""
    yield "| the new backbone gives | ports | refused | largest share that one kept |"
    yield "|---|---|---|---|"
    for kind, rows in sorted(kinds.items(), key=lambda kind: _place(kind[0])):
        ports, refused = (sum(r[k] for r in rows) for k in ("ports", "refused"))
        yield f"| {kind} | {ports} | {refused} | {max(r['largest'] for r in rows):.0%} |"


def _place(kind: str) -> tuple[int, str]:
    """Return where a kind stands in a table: those with a number by it, after the others."""
    first = kind.partition(" ")[0]
    return (int(first), "") if first.isdigit() else (0, kind)


def _limits(found: Mapping[str, Any]) -> Iterator[str]:
    steps = ", ".join(
        f"{name} {how['steps']} of {how['batch']} texts" for name, how in found["moved"].items()
    )
    yield "## What this does not show"
    yield ""
    yield from _prose(
        f"The next versions are ours: a few hundred steps further ({steps}), where a maintainer "
        "would take more. Of sentence encoders only one could be had from a package; the other "
        "model is a language model whose states are averaged. The tiny model learnt from sums like "
        "those it is judged on, with other answers. Experts alone are judged; what a composition "
        "makes of them, its own gates say."
    )
