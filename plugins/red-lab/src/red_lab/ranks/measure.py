"""Accuracy by rank: one package truncated by its host, compared with a package for each rank."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import safetensors.torch
import torch

import redhost
from red_lab.intervals import Array, interval
from red_lab.metrics import cached_json
from red_lab.progress import Bar
from red_lab.ranks.subjects import Subject, expert_in, train_one
from redhost.core.evaluation.evaluate import hits_by_system
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import read_expert

__all__ = ["METHODS", "RANKS", "heaviest_first", "measure"]

RANKS = (2, 4, 8, 16, 32)
METHODS = {
    "nested": "one package, trained at all ranks",
    "apart": "a package for each rank",
    "cut": "one package of the largest rank, truncated",
    "heaviest": "the same, largest units first",
}
"""Titles in tables. The last two are packages that declare ranks they were not trained at."""

RUNS, ROWS = 25, 256
"""Number of timed passes, and rows of a pass."""


def measure(subject: Subject, *, seeds: int, work: Path) -> dict[str, Any]:
    """Train, package, serve and evaluate; stored measurements are loaded.

    Args:
        subject: The data and experts.
        seeds: How many times all experts are trained.
        work: Folder of packages, features and single results.
    """
    bar, results = Bar(f"ranks, {subject.name}", total=seeds), []
    for seed in range(seeds):
        file = work / f"{subject.name}-{seed}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        results.append(cached_json(file, partial(_one, subject, seed=seed, work=work)))
        bar.update(seed + 1)

    def mean(hits: Iterable[Sequence[float]]) -> Array:
        averaged: Array = np.array(list(hits), dtype=np.float64).mean(0)
        return averaged

    def hits(method: str, rank: int) -> Array:
        return mean(r["hits"][method][str(rank)]["routed"] for r in results)

    def shown(values: Array) -> dict[str, float]:
        low, high = interval(values, subject.clusters)
        return {"mean": float(values.mean()), "low": low, "high": high}

    return {
        "title": subject.title,
        "rows": len(subject.test),
        "seeds": seeds,
        "router": subject.router,
        "without": {
            "name": subject.without,
            **shown(mean(r["without"] for r in results)),
        },
        "routed": {m: {str(r): shown(hits(m, r)) for r in RANKS} for m in METHODS},
        "less apart": {str(r): shown(hits("nested", r) - hits("apart", r)) for r in RANKS},
        "pays": _paid(subject, work / f"{subject.name}-0", ranks=RANKS),
        "seconds": {
            name: statistics.median(r["seconds"][name] for r in results)
            for name in results[0]["seconds"]
        },
    }


def _one(subject: Subject, *, seed: int, work: Path) -> dict[str, Any]:
    """Train everything from one seed and evaluate it on the test rows."""
    folder, seconds = work / f"{subject.name}-{seed}", dict[str, float]()

    def train(where: str, **settings: Any) -> list[Path]:
        start = perf_counter()
        made = [train_one(subject, i, folder / where, seed=seed, **settings) for i in subject.parts]
        seconds[where] = perf_counter() - start
        return made

    nested = train("nested", ranks=RANKS)
    apart = {rank: train(f"rank{rank}", rank=rank) for rank in RANKS}
    largest = apart[RANKS[-1]]
    claimed = {
        name: [_claim(p, folder / name / p.name, heaviest=name == "heaviest") for p in largest]
        for name in ("cut", "heaviest")
    }
    found: dict[str, dict[str, Any]] = {
        "nested": {str(r): _judge(subject, nested, rank=r) for r in RANKS},
        "apart": {str(r): _judge(subject, apart[r]) for r in RANKS},
        **{n: {str(r): _judge(subject, c, rank=r) for r in RANKS} for n, c in claimed.items()},
    }
    return {"hits": found, "without": _without(subject, folder), "seconds": seconds}


def _claim(package: Path, folder: Path, *, heaviest: bool) -> Path:
    """Write a package again, declaring ranks that it was not trained at."""
    files = read_expert(from_folder(package)).unwrap(package.name)
    manifest, made = files.manifest, expert_in(package)
    assert isinstance(made, redhost.plugins.LowRank)  # noqa: S101  (all here are)
    card = redhost.authoring.CardFile(
        kind=manifest.card.kind,
        name=manifest.card.file,
        data=files.card,
        fit=manifest.card.fit,
        gate=manifest.card.gate,
    )
    draft = redhost.authoring.ExpertDraft(
        expert=heaviest_first(made) if heaviest else made,
        card=card,
        canary=safetensors.torch.load(files.canary)["z"],
        id=manifest.id,
        backbone=manifest.backbone,
        domain=manifest.domain,
        training=manifest.training,
        ranks=RANKS,
    )
    redhost.authoring.save_expert(folder, draft)
    return folder


def heaviest_first(expert: redhost.plugins.LowRank) -> redhost.plugins.LowRank:
    """Return an expert with the same Δ whose units are sorted by decreasing ‖U_j‖ ‖V_j‖."""
    order = (expert.U.norm(dim=1) * expert.V.norm(dim=0)).argsort(descending=True)
    return redhost.plugins.LowRank(
        U=expert.U.detach()[order],
        u=None if expert.u is None else expert.u.detach()[order],
        V=expert.V.detach()[:, order],
        v=expert.v,
        activation=expert.activation,
        space=expert.space,
        labels=expert.labels,
        temperature=expert.temperature,
    )


def _compose(
    subject: Subject, folders: Sequence[Path], *, rank: int | None
) -> redhost.ComposedModel:
    """Compose packages as a host does, with all experts at one rank."""
    ranks = dict.fromkeys(subject.parts, rank) if rank else {}
    options = redhost.RecomposeOptions(router=subject.router, ranks=ranks)
    made = redhost.compose(subject.backbone, folders, options=options, cache=subject.cache)
    return made.composed


def _judge(
    subject: Subject, folders: Sequence[Path], *, rank: int | None = None
) -> dict[str, list[float]]:
    """Return the hits on the test rows, routed and with each row's own expert."""
    composed = _compose(subject, folders, rank=rank)
    found = hits_by_system(composed, subject.test, encode=subject.context.encode)
    return {name: found[name].tolist() for name in ("routed", "oracle")}


def _without(subject: Subject, folder: Path) -> list[float]:
    """Return the hits without low-rank experts: of the backbone, or of linear heads."""
    if subject.context.backbone.classifier is not None:
        h = subject.context.encode([r.text for r in subject.test])
        best = (h @ subject.context.backbone.classifier.T).argmax(-1).tolist()
        labels = subject.context.backbone.labels
        return [float(labels[k] == r.label) for k, r in zip(best, subject.test, strict=True)]
    heads = [train_one(subject, i, folder / "linear", seed=0, form="linear") for i in subject.parts]
    return _judge(subject, heads)["routed"]


def _paid(subject: Subject, folder: Path, *, ranks: Sequence[int]) -> dict[str, Any]:
    """Return bytes of weights and median seconds of alternating passes of the bus at each rank."""
    nested = [
        next((folder / "nested" / f"red-expert-{i}" / "src").iterdir()) for i in subject.parts
    ]
    models = {r: _compose(subject, nested, rank=r) for r in ranks}
    h = subject.context.encode([r.text for r in subject.test[:ROWS]])
    seconds: dict[int, list[float]] = {r: [] for r in ranks}
    with torch.inference_mode():
        for _ in range(RUNS):
            for rank, model in models.items():
                start = perf_counter()
                _deltas(model, h)
                seconds[rank].append(perf_counter() - start)
    middle = {r: statistics.median(s) for r, s in seconds.items()}
    return {
        str(r): {
            "bytes": sum(p.nbytes for e in model.bus.experts for p in e.parameters()),
            "time": middle[r] / middle[ranks[-1]],
        }
        for r, model in models.items()
    }


def _deltas(model: redhost.ComposedModel, h: torch.Tensor) -> None:
    """Compute Δ of every expert, one after the other."""
    z = model.bus.norm(h)
    for expert in model.bus.experts:
        expert(z)
