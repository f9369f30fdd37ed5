"""Remove, add back and replace the shipped experts, one after the other, at every level."""

from __future__ import annotations

import dataclasses
import itertools
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redhost_author
from redhost_author.training.context import open_backbone

import redhost
from red_lab.arithmetic import RANGES, Split
from red_lab.hotswap_site import Level, Site, Step, bytes_changed
from red_lab.ranges import EXPERT, build_expert, open_range_training
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.routers import build_router

__all__ = ["BUILDS", "build_all", "levels_of", "measure", "orders", "shipped", "swaps"]

BUILDS: Mapping[str, redhost_author.ExpertSettings] = {
    "seed 1": dataclasses.replace(EXPERT, seed=1),
    "rank 16": dataclasses.replace(EXPERT, rank=16),
}
"""Replacements of an expert: the same range, trained with another seed or another rank."""

LEVELS: tuple[Level, ...] = ("full", "row", "zero")
IDS = tuple(name for name, _, _ in RANGES)


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


def shipped() -> tuple[Path, list[Path]]:
    """Return the folders of the shipped backbone and its experts.

    Raises:
        MissingError: If one is not installed.
    """
    backbone, *experts = (
        _folder(name) for name in ("red_backbone_tiny", *(f"red_expert_{i}" for i in IDS))
    )
    return backbone, experts


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


def _folder(module: str) -> Path:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise redhost.MissingError(f"{module} is not installed", hint="Run 'make demo' first.")
    return Path(spec.origin).parent
