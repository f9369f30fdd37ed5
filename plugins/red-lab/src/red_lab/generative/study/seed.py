"""One seed, stage by stage; every stage is a file, so an interrupted run resumes."""

from __future__ import annotations

import copy
import json
import resource
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

import redhost
from red_lab.generative.study.context import StudyContext, draw
from red_lab.generative.study.divergence import divergences
from red_lab.generative.study.gates import TrainedGates, frequencies
from red_lab.generative.study.judge import bits_of, judge_rarity, judge_systems
from red_lab.generative.study.product import through_packages
from red_lab.generative.study.switch import follow
from red_lab.generative.study.tables import SCORED_PARTS, Tables, cached_column
from red_lab.generative.study.tensor_cache import cached_expert, seconds_of
from red_lab.generative.study.training import Monolith, domain_losses, train_monolith, train_one
from red_lab.metrics import cached_json
from red_lab.robust.conflict import cosines

__all__ = ["MONOLITHS", "one_seed"]

Say = Callable[[str], None]

MONOLITHS = (
    "monolith, traffic",
    "monolith, balanced",
    "monolith, group DRO",
    "monolith, regret game",
)
ROWS = 256
"""Tokens of every domain on which gradients are compared."""


def one_seed(context: StudyContext, *, seed: int, folder: Path, say: Say) -> dict[str, Any]:
    """Measure everything with one seed.

    Args:
        context: The texts.
        seed: Initial weights, batches, and which domain is rare.
        folder: The folder of cached stages.
        say: Called with progress messages.
    """
    own = folder / f"seed{seed}"
    rare = context.domains[seed % len(context.domains)]
    experts = _experts(context, seed=seed, own=own, say=say)
    tables = _tables(context, experts, folder=folder, own=own, say=say)
    gates = TrainedGates(context, tables, seed=seed, folder=own / "gates")

    def stage(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        say(name)
        return cached_json(own / f"{name}.json", make)

    routers = partial(_routers, gates, rare)
    systems = stage("systems", lambda: judge_systems(context, tables, routers(), experts))
    metrics = {
        "seed": seed,
        "rare": rare,
        "domains": list(context.domains),
        "bits": systems["bits"] | _monoliths(context, experts, rare, seed=seed, own=own, say=say),
        "sums": systems["sums"],
        "distilled": systems["distilled"],
        "rarity": stage("rarity", lambda: _rarity(context, tables, gates)),
        "divergence": stage("divergence", lambda: divergences(context, tables, experts)),
        "switch": stage("switch", lambda: follow(context, experts, routers())),
        "conflict": json.loads((own / "conflict.json").read_text("utf-8")),
    }
    if seed < context.setting.products:
        packed = partial(through_packages, context, experts, seed=seed)
        metrics["product"] = stage("product", lambda: packed(folder=folder / "packages"))
    return metrics | {"seconds": _seconds(own, context.domains), "peak_mib": _peak(own)}


def _experts(context: StudyContext, *, seed: int, own: Path, say: Say) -> dict[str, redhost.Expert]:
    """Return every domain's expert; missing ones are trained."""
    found = {}
    for domain in context.domains:
        say(f"expert {domain}")
        folder = own / domain
        found[domain] = cached_expert(
            folder / "expert.safetensors",
            partial(
                train_one, context, domain, seed=seed, checkpoint=folder / "epochs.safetensors"
            ),
        )
    return found


def _tables(
    context: StudyContext,
    experts: Mapping[str, redhost.Expert],
    *,
    folder: Path,
    own: Path,
    say: Say,
) -> Tables:
    """Compute all missing tables."""
    tables = Tables(context, experts, shared=folder, own=own)
    say("log p of base and experts")
    for part in SCORED_PARTS:
        for domain in context.domains:
            for system in ("base", *context.domains):
                tables.column(system, domain, part)
    return tables


def _routers(gates: TrainedGates, rare: str) -> dict[str, redhost.Router]:
    return {
        "average": gates.average(rare),
        "balanced": gates.balanced(),
        "robust": gates.robust(),
        "robust shares": gates.shares(),
        "distilled": gates.distilled(),
        "statistics": gates.statistics(),
    }


def _rarity(context: StudyContext, tables: Tables, gates: TrainedGates) -> dict[str, Any]:
    """Make every domain rare in turn: in weight, then also in rows."""
    found: dict[str, redhost.Router] = {"robust": gates.robust()}
    for rare in context.domains:
        found[f"average, rare {rare}"] = gates.average(rare)
        found[f"average, few {rare}"] = gates.average(rare, few=True)
        found[f"robust, few {rare}"] = gates.robust(few=rare)
    return judge_rarity(context, tables, found)


def _monoliths(
    context: StudyContext,
    experts: Mapping[str, redhost.Expert],
    rare: str,
    *,
    seed: int,
    own: Path,
    say: Say,
) -> dict[str, list[float]]:
    """Train and evaluate every monolith; return bits per byte by domain."""
    count = len(context.domains)
    even = torch.full((count,), 1 / count)
    plans = {
        "monolith, traffic": (frequencies(context.domains, rare), False, None),
        "monolith, balanced": (even, False, None),
        "monolith, group DRO": (even, True, None),
        "monolith, regret game": (even, True, list(experts.values())),
    }
    bits = {}
    for name, (start, moves, reference) in plans.items():
        say(name)

        def make(
            name: str = name, start: Any = start, moves: bool = moves, reference: Any = reference
        ) -> redhost.Expert:
            made = train_monolith(
                context, name=name, start=start, moves=moves, reference=reference, seed=seed
            )
            if name == "monolith, balanced":
                cached_json(own / "conflict.json", lambda: _conflict(context, made, seed=seed))
            return made.adapter

        adapter = cached_expert(own / name / "expert.safetensors", make)
        bits[name] = _bits(context, adapter, own / name)
    return bits


def _bits(context: StudyContext, adapter: redhost.Expert, folder: Path) -> list[float]:
    return [
        bits_of(cached_column(context, adapter, folder, d, "test"), context.part(d, "test").scale)
        for d in context.domains
    ]


def _conflict(context: StudyContext, made: Monolith, *, seed: int) -> dict[str, Any]:
    """Return cosines between domains' gradients on the monolith: start, middle, end."""
    generator = torch.Generator().manual_seed(seed)
    parts = [draw(context.part(d, "train"), ROWS, generator) for d in context.domains]
    cosines_at = {}
    for when, adapter in (*made.stages.items(), ("end", made.adapter)):
        module = copy.deepcopy(adapter).requires_grad_(True)
        found = cosines(module, partial(domain_losses, context, module, parts))
        cosines_at[when] = {
            "mean": sum(found) / len(found),
            "least": min(found),
            "negative": sum(c < 0 for c in found) / len(found),
        }
    return cosines_at


def _seconds(own: Path, domains: Sequence[str]) -> dict[str, float]:
    """Return the duration of every training."""
    found = {f"expert {d}": seconds_of(own / d / "expert.safetensors") for d in domains}
    found |= {name: seconds_of(own / name / "expert.safetensors") for name in MONOLITHS}
    return found | {f.stem: seconds_of(f) for f in sorted((own / "gates").glob("*.safetensors"))}


def _peak(own: Path) -> float:
    """Return the peak memory of the process so far, MiB."""
    measured = cached_json(
        own / "memory.json",
        lambda: {"mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024},
    )
    return float(measured["mib"])
