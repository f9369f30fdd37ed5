"""Run the studies step by step, and write their metrics and their page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import redhost
from red_lab.intervals import Array, interval
from red_lab.metrics import Metrics, cached_json, read_metrics, write_results
from red_lab.newsgroups import ENCODER, encoder
from red_lab.several.corpora import STUDIES
from red_lab.several.measure import Desk, apart, measure, regression
from redhost.core.label_sets import split_labels

__all__ = ["page", "run", "score"]

TITLES = {
    "routed": "**experts under `redhost recompose`**",
    "all": "union of every expert's own answers (`--each`, no router)",
    "everybody": "one expert trained on the pooled rows",
    "everybody routed": "one expert trained on the pooled rows, under `redhost recompose`",
    "regression": "one logistic regression per label, on the pooled rows",
    "complete": "the same, if every team had annotated its texts with all labels",
    "shown": "one expert trained on the rows of all teams' cards",
    "random": "experts with shuffled parameters, under `redhost recompose`",
    "nothing": "no answer to any text",
}
UNSEEN = (
    "An unseen country is one that no training row of newswire contains; newswire is the only team "
    "that marks countries."
)


def run(
    names: Sequence[str], *, seeds: Sequence[int], validation: bool, out: Path, work: Path
) -> Path:
    """Measure studies, add their metrics to those of the others, and write the page.

    Args:
        names: Names of the studies.
        seeds: Seeds of the experts; the split is part of the data.
        validation: Evaluate on held-out training rows.
        out: Folder for the results.
        work: Folder for packages, features and finished steps.
    """
    for name in names:
        measured = _measured(name, seeds, validation=validation, work=work / name)
        write_results(read_metrics(out) | {name: measured}, out, page=page)
    return out / "metrics.json"


def _measured(name: str, seeds: Sequence[int], *, validation: bool, work: Path) -> dict[str, Any]:
    part = "validation" if validation else "test"
    work = work / part
    work.mkdir(parents=True, exist_ok=True)
    study = STUDIES[name]
    desk = Desk.open(study, f"hf:{encoder()}", validation=validation, work=work)
    fixed = cached_json(
        work / "regression.json", lambda: {"regression": regression(desk, desk.everybody)}
    )
    if (complete := study.complete) is not None:
        fixed |= cached_json(
            work / "complete.json",
            lambda: {"complete": regression(desk, desk.split(complete(validation)))},
        )
    fixed["nothing"] = ["none"] * len(desk.test)
    routers, systems = list[str](), dict[str, list[list[str]]]()
    for seed in seeds:
        found = cached_json(work / f"experts-{seed}.json", partial(measure, desk, seed=seed))
        alone = cached_json(work / f"apart-{seed}.json", partial(apart, desk, seed=seed))
        routers.append(found["router"])
        for system, answers in (found["answers"] | alone | fixed).items():
            systems.setdefault(system, []).append(answers)
    labels, clusters = [r.label for r in desk.test], study.clusters(desk.test)
    metrics: dict[str, Any] = {
        "schema": "red-lab.several/1",
        "validation": validation,
        "seeds": len(seeds),
        "rows": len(labels),
        "digest": _digest([*desk.learn, *desk.test]),
        "labels": len({*desk.task.head.labels_in([r.label for r in desk.learn])}),
        "train_rows": {t: len(p.rows) for t, p in desk.parts.items()},
        "routers": sorted({*routers}),
        "systems": {s: score(labels, x, clusters) for s, x in systems.items()},
    }
    if study.unseen is not None:
        chosen = [n for n, row in enumerate(desk.test) if study.unseen(row)]
        metrics["unseen"] = {
            "rows": len(chosen),
            "systems": {
                s: score(*_picked(chosen, labels, x, clusters)) for s, x in systems.items()
            },
        }
    return metrics


def _digest(rows: Sequence[redhost.Row]) -> str:
    """Return a digest of the rows, since the index of packages changes over time."""
    lines = "".join(f"{r.domain}\t{r.label}\t{r.text}\n" for r in rows)
    return hashlib.sha256(lines.encode()).hexdigest()


def _picked(
    chosen: Sequence[int],
    labels: Sequence[str],
    answers: Sequence[Sequence[str]],
    clusters: Sequence[str],
) -> tuple[list[str], list[list[str]], list[str]]:
    return (
        [labels[n] for n in chosen],
        [[some[n] for n in chosen] for some in answers],
        [clusters[n] for n in chosen],
    )


def score(
    labels: Sequence[str], answers: Sequence[Sequence[str]], clusters: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return micro F1 and the share of whole answers that are right, with intervals.

    Args:
        labels: Right answers for N rows: labels or spans as text.
        answers: By seed, answers for the N rows.
        clusters: The cluster of each row.
    """
    own = [{*split_labels(y)} for _ in answers for y in labels]
    given = [{*split_labels(y)} for some in answers for y in some]
    hits = np.array([2.0 * len(a & b) for a, b in zip(own, given, strict=True)])
    total = np.array([float(len(a) + len(b)) for a, b in zip(own, given, strict=True)])
    whole = np.array([float(a == b) for a, b in zip(own, given, strict=True)])
    every = [*clusters] * len(answers)
    return {
        "f1": _figures(hits, total, every),
        "whole": _figures(whole, np.ones_like(whole), every),
    }


def _figures(values: Array, of: Array, clusters: Sequence[str]) -> dict[str, float]:
    low, high = interval(values, clusters, of=of)
    return {"mean": float(values.sum() / of.sum()), "low": low, "high": high}


def page(every: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.several/1``, by study."""
    lines = [
        "# Several answers per text",
        "",
        "Generated by `redhost lab several` from `metrics.json` in this folder; do not edit.",
        "",
        "Each team annotates only its own labels. The encoder is all-MiniLM-L6-v2, from the "
        f"package `{ENCODER}`. Every team trains its expert alone, as `redhost train-expert` does. "
        "*Pooled rows* are the rows of all teams together; a text has the labels that the teams "
        "that have it gave it, and no others. F1 is computed over all pairs (text, label). A span "
        "is right if its label and both ends are right. Intervals are 95 %, by bootstrap over "
        "texts, for packages over source packages.",
        "",
    ]
    for name, study in STUDIES.items():
        if name in every:
            lines += [f"## {study.title}", "", *_study(every[name])]
    return "\n".join(lines).rstrip() + "\n"


def _study(metrics: Mapping[str, Any]) -> list[str]:
    rows = ", ".join(f"{t} {n}" for t, n in metrics["train_rows"].items())
    where = "held-out training rows" if metrics["validation"] else "held-out texts"
    chosen = ", ".join(f"`{r}`" for r in metrics["routers"])
    unseen = metrics.get("unseen")
    more = f" | F1 on {unseen['rows']} texts with an unseen country" if unseen else ""
    lines = [
        f"{metrics['labels']} labels. Training rows by team: {rows}. Evaluated on {where}: "
        f"{metrics['rows']} rows, {metrics['seeds']} seeds. SHA-256 of all rows: "
        f"{metrics['digest'][:12]}. Router chosen by `recompose`: {chosen}.",
        *(["", UNSEEN] if unseen else []),
        "",
        f"| system | F1 | exact match{more} |",
        "|---|---|---|" + ("---|" if unseen else ""),
    ]
    for name, title in TITLES.items():
        if name not in metrics["systems"]:
            continue
        cells = [metrics["systems"][name]["f1"], metrics["systems"][name]["whole"]]
        cells += [unseen["systems"][name]["f1"]] if unseen else []
        lines.append(f"| {title} | {' | '.join(map(_cell, cells))} |")
    return [*lines, ""]


def _cell(x: Mapping[str, float]) -> str:
    return f"{x['mean']:.3f} ({x['low']:.3f}–{x['high']:.3f})"
