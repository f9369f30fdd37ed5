"""`redhost lab generative`: seeds of one backbone, stage by stage, and one page.

Every stage is a file under a digest of backbone, texts and setting: an interrupted run resumes, and
results of another study are never reused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

import redhost
from red_lab.generative.context import SMOLLM2, TINY, StudyContext
from red_lab.generative.corpora import read_corpora
from red_lab.generative.gates import TrainedGates, frequencies
from red_lab.generative.judge import bits_of, divergences, judge_rarity, judge_systems
from red_lab.generative.likelihoods import Tables, cached_expert
from red_lab.generative.product import through_packages
from red_lab.generative.summary import page, summarise
from red_lab.generative.tiny import tiny_language_model
from red_lab.generative.training import train_monolith, train_one
from red_lab.metrics import cached_json, write_results
from red_lab.red.run import smollm2_file

__all__ = ["Say", "one_seed", "run", "study"]

Say = Callable[[str], None]
"""Called with progress messages."""


def run(*, source: str, seeds: int, out: Path, work: Path, say: Say) -> Path:
    """Measure missing results; write metrics.json, and the page.

    Args:
        source: ``tiny``, which is pretrained if it does not exist yet, or ``smollm2``.
        seeds: Number of seeds.
        out: The folder for results; a folder with the backbone's name is made in it.
        work: The folder for states, experts and tables.
        say: Called with progress messages.

    Returns:
        The path of metrics.json.
    """
    setting = TINY if source == "tiny" else SMOLLM2
    model = f"hf:{tiny_language_model(work)}" if source == "tiny" else f"gguf:{smollm2_file()}"
    task, folder = redhost.plugins.Plugins().task("generation"), work / "generative"
    context = StudyContext(
        redhost.Backbone.load(model, task=task),
        read_corpora(sizes=setting.sizes),
        setting=setting,
        folder=folder / "features",
    )
    return study(context, name=source, seeds=seeds, out=out / source, folder=folder, say=say)


def study(
    context: StudyContext, *, name: str, seeds: int, out: Path, folder: Path, say: Say
) -> Path:
    """Measure every seed, and write the results."""
    setting = json.dumps(asdict(context.setting), sort_keys=True)
    key = f"{context.fingerprint}\n{context.corpora.digest}\n{setting}"
    stages = folder / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    stages.mkdir(parents=True, exist_ok=True)
    measured = []
    for n in range(seeds):
        report = partial(_say, say, f"{name}, seed {n}")
        measure = partial(one_seed, context, seed=n, folder=stages, say=report)
        measured.append(cached_json(stages / f"seed{n}.json", measure))
    out.mkdir(parents=True, exist_ok=True)
    width, count = context.backbone.width, len(context.domains)
    metrics = {
        "schema": "red-lab.generative/2",
        "name": name,
        "backbone": {
            "fingerprint": context.fingerprint,
            "width": width,
            "vocabulary": len(context.head),
        },
        "texts": {"digest": context.corpora.digest, "sources": dict(context.corpora.sources)},
        "setting": asdict(context.setting),
        "parameters": {
            "experts": 2 * width * context.setting.rank * count,
            "router": count * (context.backbone.bus_config().router_width + 1),
        },
        **summarise(measured),
    }
    return write_results(metrics, out, page=page, sort_keys=False)


def _say(say: Say, where: str, what: str) -> None:
    say(f"{where}: {what}")


def one_seed(context: StudyContext, *, seed: int, folder: Path, say: Say) -> dict[str, Any]:
    """Measure everything with one seed.

    Args:
        context: The texts.
        seed: Initial weights, batches, and which domain is rare.
        folder: The folder of cached stages.
        say: Called with progress messages.
    """
    context.remember()
    stages, experts = folder / f"seed{seed}", dict[str, redhost.Expert]()
    rare = context.domains[seed % len(context.domains)]
    for domain in context.domains:
        say(f"expert {domain}")
        checkpoint = stages / domain / "epochs.safetensors"
        train = partial(train_one, context, domain, seed=seed, checkpoint=checkpoint)
        experts[domain] = cached_expert(stages / domain / "expert.safetensors", train)
    tables = Tables(context, experts, shared=folder, own=stages)
    gates = TrainedGates(context, tables, seed=seed, folder=stages / "gates")

    def stage(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        say(name)
        return cached_json(stages / f"{name}.json", make)

    systems = stage("systems", lambda: judge_systems(context, tables, gates.shown(rare), experts))
    metrics = {
        "seed": seed,
        "rare": rare,
        "domains": list(context.domains),
        "bits": systems | _monoliths(context, experts, rare, seed=seed, folder=stages, say=say),
        "rarity": stage("rarity", lambda: judge_rarity(context, tables, gates.rare())),
        "divergence": stage("divergence", lambda: divergences(context, tables, experts)),
    }
    if seed < context.setting.products:
        packages = folder / "packages"
        packed = partial(through_packages, context, experts, seed=seed, folder=packages)
        metrics["product"] = stage("product", packed)
    return metrics


def _monoliths(
    context: StudyContext,
    experts: Mapping[str, redhost.Expert],
    rare: str,
    *,
    seed: int,
    folder: Path,
    say: Say,
) -> dict[str, list[float]]:
    """Train and evaluate every monolith; return bits per byte by domain."""
    count, bits = len(context.domains), dict[str, list[float]]()
    even = torch.full((count,), 1 / count)
    modules = list(experts.values())
    plans: Mapping[str, dict[str, Any]] = {
        "monolith, traffic": {"start": frequencies(context.domains, rare)},
        "monolith, balanced": {"start": even},
        "monolith, group DRO": {"start": even, "moves": True},
        "monolith, regret game": {"start": even, "moves": True, "reference": modules},
    }
    for name, plan in plans.items():
        say(name)
        train = partial(train_monolith, context, name=name, seed=seed, **plan)
        adapter = cached_expert(folder / name / "expert.safetensors", train)
        table = Tables(context, {name: adapter}, shared=folder, own=folder)
        bits[name] = [
            bits_of(table.column(name, d, "test"), context.part(d, "test").scale)
            for d in context.domains
        ]
    return bits
