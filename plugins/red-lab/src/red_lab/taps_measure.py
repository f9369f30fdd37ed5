"""Range experts at several places of the tiny backbone, each as a package in a composition."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

import redhost
from red_lab.arithmetic import RANGES, Split, pairs_in
from red_lab.intervals import interval
from red_lab.metrics import cached_json
from red_lab.progress import Bar
from red_lab.ranges import EXPERT, role_rows
from redhost.core.composition.recompose import compose
from redhost.core.training.data import DataSplits

__all__ = ["PLACES", "Place", "measure", "own_rows"]


class Place(NamedTuple):
    """Where an expert reads and writes: ``final`` or the number of a block."""

    reads: str
    writes: str

    @property
    def name(self) -> str:
        """Its name in tables."""
        if self.writes == "final":
            return "the bus" if self.reads == "final" else f"reads block {self.reads}"
        return f"reads block {self.reads}, writes block {self.writes}"


TWIN = Place("final", "final")
PLACES = (
    TWIN,
    Place("0", "final"),
    Place("1", "final"),
    Place("2", "final"),
    Place("0", "2"),
    Place("1", "2"),
    Place("2", "2"),
)
NAMES = tuple(name for name, _, _ in RANGES)
EPOCHS = 60
"""Epochs, the same for all places; the shipped experts have 200."""


def measure(*, work: Path) -> dict[str, Any]:
    """Train, package, attach and evaluate every expert at every place.

    Args:
        work: Folder of single results, from which a later run continues.
    """
    site = {n: _installed(f"red_expert_{n}") for n in NAMES}
    backbone = _installed("red_backbone_tiny")
    bar, measured = Bar("taps", total=len(PLACES) * len(NAMES)), {}
    for place in PLACES:
        for name in NAMES:
            file = work / f"{place.reads}-{place.writes}-{name}.json"
            make = partial(_one, place, name, backbone=backbone, site=site, work=work)
            measured[place, name] = cached_json(file, make)
            bar.update(len(measured))
    rows = compose(backbone, list(site.values())).composed.evaluation
    clusters = [str(sorted(pairs_in(r.text))) for r in rows]
    alone = {p: own_rows(rows, {n: measured[p, n]["alone"] for n in NAMES}) for p in PLACES}
    return {
        "schema": "red-lab.taps/1",
        "epochs": EPOCHS,
        "rows": len(rows),
        "places": {
            p.name: {
                "alone": _mean_and_interval(alone[p], clusters),
                "less the twin": _mean_and_interval(alone[p] - alone[TWIN], clusters),
                "domains": {n: float(np.mean(measured[p, n]["alone"])) for n in NAMES},
                "composed": float(np.mean([measured[p, n]["composed"] for n in NAMES])),
                "routed": float(np.mean([measured[p, n]["routed"] for n in NAMES])),
                "parameters": measured[p, NAMES[0]]["parameters"],
                "seconds": float(np.median([measured[p, n]["seconds"] for n in NAMES])),
                "epochs": [measured[p, n]["epochs"] for n in NAMES],
            }
            for p in PLACES
        },
    }


def _one(
    place: Place, name: str, *, backbone: Path, site: Mapping[str, Path], work: Path
) -> dict[str, Any]:
    """Train one expert, compose it in place of its shipped counterpart and evaluate it."""
    split = Split.numbered(0)
    project = work / f"red-expert-{name}-{place.reads}-{place.writes}"
    shutil.rmtree(project, ignore_errors=True)
    folder = redhost.authoring.write_project(
        project, kind="expert", package_id=name, summary="taps"
    )
    plan = redhost.authoring.ExpertPlan(
        id=name, writes="hidden", reads_tap=place.reads, writes_tap=place.writes
    )
    train, fit, gate = (
        tuple(redhost.Row(text=r.text, label=r.label) for r in role_rows(split, part, name))
        for part in ("train", "fit", "gate")
    )
    parts = DataSplits(train=train, valid=(), fit=fit, gate=gate)
    settings = dataclasses.replace(EXPERT, space="hidden", epochs=EPOCHS, patience=EPOCHS)
    context = redhost.authoring.open_for_training(backbone, cache=work / "features")
    start = perf_counter()
    redhost.authoring.train_package(project, plan, parts, context=context, settings=settings)
    seconds = perf_counter() - start
    composed = compose(
        backbone, [folder if n == name else f for n, f in site.items()], cache=work / "features"
    ).composed
    return {**_accuracies(composed, name), "seconds": seconds, **_made(folder)}


def _accuracies(composed: redhost.ComposedModel, name: str) -> dict[str, Any]:
    """Return the hits of the expert alone on its own held-out rows, and of the composition."""
    bus, rows = composed.bus, composed.evaluation
    wide = composed.backbone.encode([r.text for r in rows])
    with torch.inference_mode():
        z = bus.norm(wide)
        alpha = bus.weights(z)
        routed = bus.task.head.right(bus.probabilities(wide, z, alpha), rows, bus.labels)
        own = torch.tensor([r.domain == name for r in rows])
        p = bus.alone(wide[own], z[own], bus.ids.index(name))
        alone = bus.task.head.right(p, [r for r in rows if r.domain == name], bus.labels)
        home = alpha[own].argmax(-1) == bus.ids.index(name)
    return {
        "alone": alone.tolist(),
        "composed": float(routed.mean()),
        "routed": float(home.double().mean()),
    }


def _made(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / "expert.json").read_text("utf-8"))
    count = sum(p.numel() for p in _weights(folder / manifest["weights"]["file"]).values())
    return {"parameters": count, "epochs": manifest["training"]["epochs"]}


def _weights(path: Path) -> dict[str, torch.Tensor]:
    import safetensors.torch

    return safetensors.torch.load_file(path)


def own_rows(
    rows: Sequence[redhost.Row], hits: Mapping[str, Sequence[float]]
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the hits of each row's own expert, in the rows' order."""
    left = {n: iter(values) for n, values in hits.items()}
    return np.array([next(left[str(r.domain)]) for r in rows], dtype=np.float64)


def _mean_and_interval(
    values: np.ndarray[Any, np.dtype[np.float64]], clusters: Sequence[str]
) -> dict[str, float]:
    low, high = interval(values, clusters)
    return {"mean": float(values.mean()), "low": low, "high": high}


def _installed(module: str) -> Path:
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        raise redhost.MissingError(
            f"the package of {module} is not here", hint="Run 'make demo' first."
        )
    return Path(found.origin).parent
