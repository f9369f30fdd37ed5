"""Run the text experiment over seeds, and write what came out as metrics and as a page."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from red_lab.intervals import interval
from red_lab.newsgroups import DATA, ENCODER, TEAMS
from red_lab.text import CARDS, KINDS, measure, open_desk

__all__ = ["run", "summarise", "write_page"]

UNION = "union head"
TITLES = {
    UNION: "one head trained on everybody's data",
    "union head, summed rank": "the same with the experts' ranks summed",
    "oracle": "experts, oracle routing (label-informed)",
    "uniform": "experts, uniform weights",
    "best_single": "best single expert (chosen on these very rows)",
}


def run(*, seeds: int, out: Path, work: Path, validation: bool) -> Path:
    """Measure over seeds and write metrics.json with its page.

    Args:
        seeds: How many; the split is the data's own.
        out: Where the results go.
        work: Where packages and features are kept.
        validation: Judge on training rows set aside; the test file is not opened.
    """
    desk = open_desk(work, validation=validation)
    measured = []
    for seed in range(seeds):
        file = work / f"{'validation' if validation else 'test'}-{seed}.json"
        if not file.exists():
            file.write_text(json.dumps(measure(desk, seed=seed)), "utf-8")
        measured.append(json.loads(file.read_text("utf-8")))
    metrics = summarise(measured, texts=[r.text for r in desk.test])
    metrics["validation"] = validation
    metrics["train_rows"] = {t: len(p.train) for t, p in desk.parts.items()}
    metrics["card_rows"] = {t: len(p.fit) for t, p in desk.parts.items()}
    out.mkdir(parents=True, exist_ok=True)
    path = out / "metrics.json"
    path.write_text(json.dumps(metrics, indent=2, sort_keys=True) + "\n", "utf-8")
    write_page(json.loads(path.read_text("utf-8")), out / "README.md")
    return path


def summarise(measured: Sequence[Mapping[str, Any]], *, texts: Sequence[str]) -> dict[str, Any]:
    """Return accuracies, and ratios to the union head, with intervals over texts."""
    clusters = [t for _ in measured for t in texts]
    hits = {n: np.array([x for m in measured for x in m["hits"][n]]) for n in measured[0]["hits"]}
    union = float(max(hits[n].mean() for n in hits if n.startswith(UNION)))
    best = max((n for n in hits if n.startswith(UNION)), key=lambda n: float(hits[n].mean()))
    systems = {}
    for name, values in hits.items():
        low, high = interval(values, clusters)
        worse, better = interval(values - hits[best], clusters)
        systems[name] = {
            "accuracy": float(values.mean()),
            "low": low,
            "high": high,
            "ratio": float(values.mean()) / union,
            "difference": {"mean": float(values.mean()) - union, "low": worse, "high": better},
        }
    return {
        "schema": "red-lab.newsgroups/1",
        "seeds": len(measured),
        "rows": len(texts),
        "labels": sum(len(y) for y in TEAMS.values()),
        "union": best,
        "systems": systems,
        "gate": {n: _mean([m["gate"][n] for m in measured]) for n in measured[0]["gate"]},
        "outside": {n: _mean([m["outside"][n] for m in measured]) for n in measured[0]["outside"]},
        "joins": {
            t: {k: _mean([m["joins"][t][k] for m in measured]) for k in measured[0]["joins"][t]}
            for t in TEAMS
        },
        "temperatures": {t: _mean([m["temperatures"][t] for m in measured]) for t in sorted(TEAMS)},
    }


def write_page(metrics: Mapping[str, Any], path: Path) -> None:
    """Write a Markdown page for metrics of the schema ``red-lab.newsgroups/1``."""
    lines = [*_head(metrics), *_systems(metrics), *_joins(metrics), *_outside(metrics)]
    path.write_text("\n".join(lines), "utf-8")


def _head(metrics: Mapping[str, Any]) -> list[str]:
    rows = ", ".join(f"{t} {n}" for t, n in metrics["train_rows"].items())
    which = "training rows set aside" if metrics["validation"] else "the test rows by date"
    return [
        "# Five teams, twenty newsgroups",
        "",
        "Written by `redhost lab text` from `metrics.json`; do not edit.",
        "",
        f"20 Newsgroups (letters only, split by date) as `{DATA}` carries it; {metrics['labels']} "
        f"labels over {len(TEAMS)} experts that share none; frozen all-MiniLM-L6-v2 as "
        f"`{ENCODER}` carries it, texts cut at 128 tokens. Trained on: {rows} rows. Judged on "
        f"{which}, {metrics['rows']} of them, {metrics['seeds']} seeds. Intervals are 95 %, by "
        "bootstrap over texts; differences are paired.",
        "",
    ]


def _systems(metrics: Mapping[str, Any]) -> list[str]:
    lines = [
        f"| system | accuracy | 95 % | of the {metrics['union']} | difference, points |",
        "|---|---|---|---|---|",
    ]
    for name, title in _rows():
        s = metrics["systems"][name]
        d = {k: 100 * v for k, v in s["difference"].items()}
        lines.append(
            f"| {title} | {s['accuracy']:.4f} | {s['low']:.4f}–{s['high']:.4f} "
            f"| {s['ratio']:.1%} | {d['mean']:+.1f} ({d['low']:+.1f} … {d['high']:+.1f}) |"
        )
    return [*lines, ""]


def _rows() -> list[tuple[str, str]]:
    rows = list(TITLES.items())
    for card, what in CARDS.items():
        rows += [(f"{kind} {card}", f"router `{kind}`, cards: {what}") for kind in KINDS]
        rows.append((f"plain {card}", f"no expert: linear discriminants from {what}"))
    return rows


def _joins(metrics: Mapping[str, Any]) -> list[str]:
    lines = [
        "An expert joins the four others (cards of texts, the default router): what changes for",
        "them. A change of more than the tolerance on gate rows is refused without `--accept`.",
        "",
        "| who joins | answers of old experts that changed | others before | others after "
        "| newcomer's rows | refused |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {t} | {j['changed_probabilities']:.0f} | {j['before']:.4f} | {j['after']:.4f} "
        f"| {j['newcomer']:.4f} | {j['refused']:.0%} of seeds |"
        for t, j in metrics["joins"].items()
    ]
    return [*lines, ""]


def _outside(metrics: Mapping[str, Any]) -> list[str]:
    o = metrics["outside"]
    return [
        f"Unknown input: {o['rows']:.0f} Reuters newswire texts, where the background card is "
        f"fiction and sitcom lines. Declined: {o['declined']:.1%} of them, "
        f"{o['declined_inside']:.1%} of the experts' own; AUROC of the backbone column's weight "
        f"{o['auroc']:.3f}.",
        "",
    ]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None
