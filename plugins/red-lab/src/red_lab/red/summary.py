"""Summarise single seeds as metrics.json: means, intervals by cluster, paired differences.

It includes the share of test questions that also occur in training or pretraining data.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from red_lab.arithmetic import SPLITS, Split
from red_lab.corpus import Corpus
from red_lab.intervals import Array, mean_known, mean_within
from red_lab.red.experts import NAMES
from red_lab.red.measure import Plan
from red_lab.red.queries import RULE, Data, boundary
from red_lab.tiny_model import Pretraining

__all__ = ["earlier_rule", "errors", "key_of", "seen", "summarise", "table", "titled"]


def seen(backbone: str, datasets: Sequence[Data]) -> dict[str, float | None]:
    """Return shares of the test questions of all seeds, 0–1.

    Args:
        backbone: The backbone; only for ``tiny`` is the pretraining data known.
        datasets: The questions of seed 0, 1, …

    Returns:
        ``training``: the same text is a training question. ``rearranged``: the same, or with its
        numbers in another order. ``pretraining``: the language model was pretrained on the
        question and its answer; None if the pretraining data is not known.
    """
    tests = [q for data in datasets for q in data.test]
    texts = [{q.text for q in data.train} for data in datasets]
    clusters = [{q.cluster for q in data.train} for data in datasets]
    every = range(len(datasets))
    training = sum(q.text in texts[n] for n in every for q in datasets[n].test)
    rearranged = sum(q.cluster in clusters[n] for n in every for q in datasets[n].test)
    read = None
    if backbone == "tiny":
        read = sum(q.text in _pretrained_on(n % SPLITS) for n in every for q in datasets[n].test)
    return {
        "training": training / len(tests),
        "rearranged": rearranged / len(tests),
        "pretraining": None if read is None else read / len(tests),
    }


@cache
def _pretrained_on(number: int) -> frozenset[str]:
    """Return the questions in the pretraining data of the tiny language model of a split."""
    settings, corpus = Pretraining(), Corpus.of(Split.numbered(number), seed=0)
    return frozenset(
        example.question
        for step in range(settings.steps)
        for example in corpus.batch(step, size=settings.batch)
    )


KEYS: Mapping[str, str] = {
    "global head": "global",
    "best single residual expert": "best_single",
    "oracle, residual": "oracle",
    "uniform residuals": "uniform",
    "RED, hard top-1": "hard",
    "RED, nearest centroid": "centroid",
    "RED, joint integration": "red_joint",
}
"""Keys of systems in metrics.json that `key_of` does not derive from the title."""


def key_of(title: str) -> str:
    """Return the key of a system, e.g. ``moe_linear`` for "MoE, linear"."""
    return KEYS.get(title) or "_".join(re.findall("[a-z0-9]+", title.lower()))


def earlier_rule(metrics: Mapping[str, Any]) -> int | None:
    """Return the number of the rule that split a run's questions, if it is not the current rule."""
    rule: int | None = metrics.get("split_rule")
    return None if rule == RULE else rule


def titled(systems: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the systems of metrics.json by title."""
    return {s["title"]: s for s in systems.values()}


def summarise(
    plan: Plan, measured: Sequence[Mapping[str, Any]], datasets: Sequence[Data]
) -> dict[str, Any]:
    """Return the metrics over all seeds: means, intervals by cluster, paired differences."""
    clusters = _clusters(datasets)
    every = {n: _all([m["hits"][n] for m in measured]) for n in measured[0]["hits"]}
    return {
        "schema": "red-lab.red/2",
        "plan": asdict(plan),
        "rows": len(clusters),
        "distinct": measured[0]["distinct"],
        "split_rule": RULE if plan.protocol == "held-out" else None,
        "seen": seen(plan.backbone, datasets),
        "systems": {
            key_of(name): _system(name, hits, clusters, [m["systems"][name] for m in measured])
            for name, hits in every.items()
        },
        "paired": {
            f"RED - {other}": mean_within(every["RED"] - every[other], clusters)
            for other in ("MoE, residual", "MoE, mlp", "MoE, linear", "monolith", "global head")
        },
        "base_kept": {
            title: _still_right(every["global head"], every[title])
            for title in ("RED", "MoE, residual", "MoE, linear")
        },
        "paired_boundary": _paired_boundary(every, clusters, datasets),
        "router_accuracy": mean_known([m["router_accuracy"] for m in measured]),
        "relative_size": {d: mean_known([m["relative_size"][d] for m in measured]) for d in NAMES},
        "cosine": {d: mean_known([m["cosine"][d] for m in measured]) for d in NAMES},
        "curves": _curves(measured),
        "confusion": np.mean([m["confusion"] for m in measured], axis=0).tolist(),
        "parameters": measured[0]["parameters"],
        "trunk_parameters": measured[0]["trunk_parameters"],
        "flops": measured[0]["flops"],
        "seconds": _medians([m["stages"] for m in measured])
        | _medians([m["seconds"] for m in measured]),
        "peak_memory_mb": max(m["peak_memory_mb"] for m in measured),
    }


def _system(
    title: str, hits: Array, clusters: Sequence[str], own: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return one system's figures over all seeds."""
    return {
        "title": title,
        "accuracy": {**mean_within(hits, clusters), "seeds": len(own)},
        "domains": {d: mean_known([t["domains"][d] for t in own]) for d in NAMES},
        **{
            key: mean_known([t[key] for t in own])
            for key in ("macro", "worst", "boundary", "macro_f1", "swap_consistency")
        },
        "errors": errors([t["distances"] for t in own]),
    }


def errors(own: Sequence[Mapping[str, int]]) -> dict[str, float | int | None]:
    """Return the number of wrong answers of all seeds and their distances from the true answers.

    Args:
        own: For every seed, the number of answers by distance.

    Returns:
        ``wrong``: the number of wrong answers; ``one`` and ``ten``: the shares of them that are
        off by one and by ten; ``median``, ``p90`` and ``most`` of the distances. All of these are
        None if no answer is wrong.
    """
    away = np.array([int(d) for t in own for d, n in t.items() if d != "0" for _ in range(n)])
    if not len(away):
        return {"wrong": 0} | dict.fromkeys(("one", "ten", "median", "p90", "most"))
    return {
        "wrong": len(away),
        "one": float((away == 1).mean()),
        "ten": float((away == 10).mean()),  # noqa: PLR2004
        "median": float(np.median(away)),
        "p90": float(np.quantile(away, 0.9)),
        "most": int(away.max()),
    }


def _still_right(before: Array, after: Array) -> float | None:
    """Return the share of previously correct answers that are still correct."""
    right = before == 1.0
    return float(after[right].mean()) if right.any() else None


def _paired_boundary(
    every: Mapping[str, Array], clusters: Sequence[str], datasets: Sequence[Data]
) -> dict[str, dict[str, float]]:
    """Return RED minus other systems on the questions near a border between ranges."""
    near = np.array([boundary(q) for data in datasets for q in data.test])
    own = [c for c, here in zip(clusters, near, strict=True) if here]
    others = ("MoE, residual", "oracle, residual") if own else ()
    return {f"RED - {o}": mean_within((every["RED"] - every[o])[near], own) for o in others}


def _curves(measured: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    first = measured[0]["curves"]
    return {
        kind: {
            name: np.mean([m["curves"][kind][name] for m in measured], axis=0).tolist()
            for name in first[kind]
        }
        for kind in first
    }


def _medians(own: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {k: float(np.median([t[k] for t in own])) for k in own[0]}


def table(
    own: Sequence[Mapping[str, Mapping[str, Sequence[float]]]], datasets: Sequence[Data]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return setting → system → mean and interval, from the hits of every seed."""
    clusters = _clusters(datasets)
    return {
        setting: {
            system: mean_within(_all([t[setting][system] for t in own]), clusters)
            for system in own[0][setting]
        }
        for setting in own[0]
    }


def _clusters(datasets: Sequence[Data]) -> list[str]:
    return [f"{n} {q.cluster}" for n, d in enumerate(datasets) for q in d.test]


def _all(hits: Sequence[Sequence[float]]) -> Array:
    return np.array([x for seed in hits for x in seed], dtype=np.float64)
