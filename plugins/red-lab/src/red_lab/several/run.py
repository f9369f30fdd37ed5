"""Run the studies step by step, and write the results as metrics and as a page."""

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
    "all": "experts, each asked alone, all that they find (`--each`, no router)",
    "everybody": "one expert of everybody's rows",
    "everybody routed": "one expert of everybody's rows, under `redhost recompose`",
    "regression": "logistic regressions, one a label, on everybody's rows",
    "complete": "the same, had every team given its texts all labels",
    "shown": "one expert of the rows that the teams' cards show",
    "random": "experts whose weights are shuffled, under `redhost recompose`",
    "nothing": "no answer to any text",
}


def run(
    names: Sequence[str], *, seeds: Sequence[int], validation: bool, out: Path, work: Path
) -> Path:
    """Measure studies, and add their metrics to the other's, with a page of both.

    Args:
        names: Names of the studies.
        seeds: Seeds of the experts; the split is the data's own.
        validation: Evaluate on held-out training rows.
        out: The folder for results.
        work: The folder for packages, features and finished steps.
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
    """Return a digest of the rows, since the package index changes over time."""
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
    """Return micro F1 and the fraction of exactly correct answers, with intervals.

    Args:
        labels: Labels or spans of N rows, as text.
        answers: By seed, the answers to N rows.
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
        "# Several answers a text",
        "",
        "Written by `redhost lab several` from the metrics beside it; do not edit.",
        "",
        f"Teams that know about labels of their own alone, on all-MiniLM-L6-v2 as `{ENCODER}` "
        "carries it. Every team trains its expert alone, as `redhost train-expert` does. "
        "Everybody's rows have the labels that the teams that have the text gave it, and no "
        "others. F1 is of all (text, label) together; a span is right where its label and both "
        "ends are. Intervals are 95 %, by bootstrap over texts, of packages over their sources.",
        "",
    ]
    for name, study in STUDIES.items():
        if name in every:
            lines += [f"## {study.title}", "", *_study(every[name])]
    return "\n".join(lines).rstrip() + "\n"


def _study(metrics: Mapping[str, Any]) -> list[str]:
    rows = ", ".join(f"{t} {n}" for t, n in metrics["train_rows"].items())
    where = "training rows set aside" if metrics["validation"] else "texts that nobody learnt from"
    chosen = ", ".join(f"`{r}`" for r in metrics["routers"])
    unseen = metrics.get("unseen")
    more = f" | F1 of {unseen['rows']} with a country that no row names" if unseen else ""
    lines = [
        f"{metrics['labels']} labels; rows of each team: {rows}. Judged on {where}: "
        f"{metrics['rows']}, {metrics['seeds']} seeds; SHA-256 of all rows "
        f"{metrics['digest'][:12]}. Chosen by `recompose`: {chosen}.",
        "",
        f"| system | F1 | whole answers right{more} |",
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
