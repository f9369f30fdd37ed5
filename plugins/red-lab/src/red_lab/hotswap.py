"""`redhost lab hotswap`: remove, add back and replace the shipped experts at every level.

This happens in a temporary home, and in a folder of packages that precedes the installed packages
on the path. A package in it hides the installed one of the same name, as an upgrade does; once it
is removed, the old one is visible again. Installed packages cannot be uninstalled without changing
this environment, so they are disabled on the command line.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import redhost_author
import torch
from redhost_author.training.context import open_backbone

import redhost
from red_lab.arithmetic import Split
from red_lab.metrics import Metrics, render, write_results
from red_lab.ranges import EXPERT, IDS, build_expert, open_range_training, shipped
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.routers import build_router
from redhost.registry.environment import python_command
from redhost.testing import Environment

__all__ = [
    "BUILDS",
    "Site",
    "Step",
    "build_all",
    "bytes_changed",
    "levels_of",
    "measure",
    "orders",
    "page",
    "run",
    "swaps",
]

Level = Literal["zero", "row", "full"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A recompose and its outcome.

    Attributes:
        receipt: Its receipt.
        refused: Whether it was refused before it was accepted.
        seconds: Time of the whole recompose: reading, checking, training the router, publishing.
        accuracy: By range, on the backbone's held-out rows.
        answers: The sha256 of the probabilities on those rows.
        sizes: Bytes of the backbone (under ``backbone``) and of each expert.
    """

    receipt: redhost.Receipt
    refused: bool
    seconds: float
    accuracy: Mapping[str, float]
    answers: str
    sizes: Mapping[str, int]

    @property
    def digests(self) -> dict[str, tuple[str, str]]:
        """Digests before and after the router was trained, by part."""
        parts = {"backbone": self.receipt.backbone, **self.receipt.experts}
        return {name: (change.before, change.after) for name, change in parts.items()}


def bytes_changed(before: Step, after: Step, *, swapped: str) -> int:
    """Count the bytes outside the router that a recompose changed, by the receipts' digests.

    Args:
        before: The previous step.
        after: The step.
        swapped: The expert that was meant to change between the two steps.
    """
    old, new = before.digests, after.digests
    moved = {name for name, (start, end) in new.items() if start != end}
    moved |= {name for name in old.keys() & new.keys() - {swapped} if old[name][1] != new[name][0]}
    return sum(after.sizes[name] for name in moved)


class Site:
    """The folder of changing packages; a context manager, since it is added to ``sys.path``.

    Args:
        folder: An empty folder.
        backbone: The backbone's id.
        router: The router's kind.
    """

    def __init__(self, folder: Path, *, backbone: str, router: str) -> None:
        self.home, self.backbone, self.router = folder / "home", backbone, router
        self.environment = Environment(folder / "site")
        self.environment.folder.mkdir(parents=True)

    def __enter__(self) -> Self:
        sys.path.insert(0, str(self.environment.folder))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.path.remove(str(self.environment.folder))

    def switch(self, expert_id: str, *, on: bool) -> None:
        """Run ``redhost enable`` or ``redhost disable``."""
        command = ["enable" if on else "disable", expert_id, "--home", str(self.home)]
        subprocess.run(  # noqa: S603  (our own command)
            python_command("-m", "redhost", *command), check=True, capture_output=True
        )

    def recompose(self, level: Level) -> Step:
        """Recompose the current packages in a newly opened host, and evaluate the outcome."""
        with redhost.Host.open(self.home, backbone=self.backbone) as host:
            start, refused = time.perf_counter(), False
            try:
                receipt = host.recompose(router=self.router, level=level, seed=0)
            except redhost.errors.HarmError:
                start, refused = time.perf_counter(), True
                receipt = host.recompose(router=self.router, level=level, seed=0, accept=True)
            seconds = time.perf_counter() - start
            composed = host.composed
            rows = composed.evaluation
            h = host.encoder(composed)([r.text for r in rows])
        with torch.inference_mode():
            p, _ = composed.bus(h)
        return Step(
            receipt=receipt,
            refused=refused,
            seconds=seconds,
            accuracy=composed.accuracy(h, rows),
            answers=hashlib.sha256(p.contiguous().numpy().tobytes()).hexdigest(),
            sizes=_sizes(composed),
        )


def _sizes(composed: redhost.ComposedModel) -> dict[str, int]:
    """Return the bytes of the backbone and of every expert."""
    backbone = composed.backbone
    parts = {"backbone": list(backbone.trunk.model.state_dict().values())}
    if backbone.classifier is not None:
        parts["backbone"].append(backbone.classifier)
    for name, expert in zip(composed.bus.ids, composed.bus.parts(), strict=True):
        parts[name] = list(expert.state_dict().values())
    return {name: sum(t.nbytes for t in tensors) for name, tensors in parts.items()}


BUILDS: Mapping[str, redhost_author.ExpertSettings] = {
    "seed 1": dataclasses.replace(EXPERT, seed=1),
    "rank 16": dataclasses.replace(EXPERT, rank=16),
}
"""Replacements of an expert: the same range, trained with another seed or another rank."""

LEVELS: tuple[Level, ...] = ("full", "row", "zero")


def measure(*, router: str) -> dict[str, Any]:
    """Build the replacements, swap at every level, and compose in every order."""
    backbone, experts = shipped()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        builds = build_all(backbone, work / "builds", ids=IDS, settings=BUILDS)
        found = {}
        for level in levels_of(router):
            with Site(work / level, backbone=open_backbone(backbone)[0].id, router=router) as site:
                found[level] = swaps(site, builds, level=level)
        ordered = orders(backbone, experts, router=router, cache=work / "features")
    return {"schema": "red-lab.hotswap/1", "router": router, "levels": found, "orders": ordered}


def levels_of(router: str) -> tuple[Level, ...]:
    """Return the levels that a router supports; ``zero`` requires a closed form."""
    config = redhost.BusConfig(width=1, labels=())
    made = build_router(router, config, IDS, 0)
    if made is None:
        return ("full",)  # a plugin's kind, about which nothing is known
    return LEVELS if made.closed_form else LEVELS[:2]


def build_all(
    backbone: Path,
    out: Path,
    *,
    ids: Sequence[str],
    settings: Mapping[str, redhost_author.ExpertSettings],
) -> dict[str, dict[str, Path]]:
    """Train other builds of experts on the rows of the shipped ones.

    Args:
        backbone: The backbone package's folder.
        out: Folder of the projects.
        ids: Ids of the experts.
        settings: Name of a build → its training settings.

    Returns:
        Id of an expert → name of a build → its project's folder.
    """
    context = open_range_training(backbone, Split.numbered(0))
    builds: dict[str, dict[str, Path]] = {}
    for expert_id, (name, how) in itertools.product(ids, settings.items()):
        project = out / name.replace(" ", "-") / f"red-expert-{expert_id}"
        build_expert(context, expert_id, project, seed=how.seed, settings=how)
        builds.setdefault(expert_id, {})[name] = project
    return builds


def swaps(site: Site, builds: Mapping[str, Mapping[str, Path]], *, level: Level) -> dict[str, Any]:
    """Compose the shipped experts, then swap each expert of `builds` at a level.

    Returns:
        The start, and the events in their order.
    """
    start = site.recompose("full")
    events, before = [], start
    for expert_id, others in builds.items():
        for event, after in _events(site, expert_id, others, level=level):
            compared = _compare(start, before, after, expert_id=expert_id)
            events.append({"expert": expert_id, "event": event, **compared})
            before = after
    return {
        "start": {
            "accuracy": dict(start.accuracy),
            "seconds": start.seconds,
            "router_digest": start.receipt.router.digest,
            "bytes": dict(start.sizes),
        },
        "events": events,
    }


def _compare(start: Step, before: Step, after: Step, *, expert_id: str) -> dict[str, Any]:
    """Return the effect of one event, compared with the previous step and with the start."""
    router = after.receipt.router
    return {
        "accuracy": dict(after.accuracy),
        "seconds": after.seconds,
        "router_seconds": router.seconds,
        "refused": after.refused,
        "moved": list(router.moved),
        "bytes_changed": bytes_changed(before, after, swapped=expert_id),
        "same_expert": after.digests.get(expert_id) == start.digests[expert_id],
        "same_router": router.digest == start.receipt.router.digest,
        "same_answers": after.answers == start.answers,
    }


def _events(
    site: Site, expert_id: str, others: Mapping[str, Path], *, level: Level
) -> Iterator[tuple[str, Step]]:
    """Remove one expert, restore it, replace it by each build, and restore it again."""
    site.switch(expert_id, on=False)
    yield "removed", site.recompose(level)
    site.switch(expert_id, on=True)
    yield "added back", site.recompose(level)
    for name, project in others.items():
        dist = site.environment.install(project)
        yield name, site.recompose(level)
        site.environment.uninstall(dist)
    if others:
        yield "restored", site.recompose(level)


def orders(backbone: Path, experts: Sequence[Path], *, router: str, cache: Path) -> dict[str, Any]:
    """Compose experts in every order; return the number of distinct router digests.

    Args:
        backbone: The backbone package's folder.
        experts: The expert packages' folders.
        router: The router's kind.
        cache: Folder of cached features.
    """
    digests = [
        compose(
            backbone, order, options=RecomposeOptions(router=router), cache=cache
        ).receipt.router.digest
        for order in itertools.permutations(experts)
    ]
    return {"orders": len(digests), "routers": len(set(digests)), "router_digest": digests[0]}


def run(*, router: str, out: Path) -> Path:
    """Measure on one thread, and write metrics.json and the page.

    Args:
        router: The router's kind.
        out: Folder of the results.
    """
    torch.set_num_threads(1)  # bitwise reproducible, and robust to other load
    return write_results(measure(router=router), out, page=page)


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.hotswap/1``."""
    return render("hotswap", metrics)
