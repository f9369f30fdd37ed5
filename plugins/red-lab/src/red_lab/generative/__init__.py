"""`redhost lab generative`: seeds of one backbone, stage by stage, and one page.

Every stage is a file under a digest of backbone, texts and setting: an interrupted run resumes, and
results of another study are never reused. Metrics are means with intervals. Bits per byte over all
mixtures of traffic are linear in λ, the fractions of bytes. So the worst mixture is one domain, and
the mean over the simplex is that over domains.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import redhost
from red_lab.generative.context import SMOLLM2, TINY, StudyContext
from red_lab.generative.corpora import read_corpora
from red_lab.generative.gates import TrainedGates, frequencies
from red_lab.generative.judge import (
    Tables,
    bits_of,
    cached_expert,
    divergences,
    judge_rarity,
    judge_systems,
)
from red_lab.generative.product import through_packages
from red_lab.generative.tiny import tiny_language_model
from red_lab.generative.training import train_monolith, train_one
from red_lab.intervals import over_seeds
from red_lab.metrics import Metrics, cached_json, render, write_results
from red_lab.models import smollm2_file

__all__ = ["page", "ratio", "recovered", "regrets", "run", "study"]

Seed = Mapping[str, Any]
Bits = Sequence[float]
Interval = dict[str, float]


def summarise(measured: Sequence[Seed]) -> dict[str, Any]:
    """Return the metrics over seeds; each is what `one_seed` returned."""
    seeds = [_with_product(m) for m in measured]
    systems = list(dict.fromkeys(name for m in seeds for name in m["bits"]))
    return {
        "seeds": len(seeds),
        "domains": seeds[0]["domains"],
        "rare": [m["rare"] for m in seeds],
        "systems": {name: _system(seeds, name) for name in systems},
        "rarity": {scene: _rarity(seeds, scene) for scene in ("rare", "few")},
        "divergence": _nested([m["divergence"] for m in seeds]),
        "monoliths": {
            name: _against(seeds, name) for name in systems if name.startswith("monolith, ")
        },
        "product": _product([m["product"] for m in seeds if "product" in m]),
    }


def regrets(bits: Bits, own: Bits) -> list[float]:
    """Return the excess of each domain's bits per byte over those of its own expert."""
    return [b - o for b, o in zip(bits, own, strict=True)]


def recovered(bits: Bits, *, base: Bits, own: Bits) -> list[float | None]:
    """Return (base − system) / (base − own) of every domain; None if the expert has no gain."""
    rows = zip(bits, base, own, strict=True)
    return [(b - s) / (b - o) if b > o else None for s, b, o in rows]


def ratio(one: float, other: float) -> float | None:
    """Return one regret over another; 0 for none at all, None where the other is none."""
    if other <= 0:
        return None if one > 0 else 0.0
    return max(one, 0.0) / other


def _with_product(seed: Seed) -> dict[str, Any]:
    """Add the product, in both its forms, to the systems of a seed."""
    if "product" not in seed:
        return dict(seed)
    product = seed["product"]
    forms = {"residual": product["bits"], "mixture": product["mixture"]["bits"]}
    added = {f"product, {form}": bits for form, bits in forms.items()}
    return {**seed, "bits": seed["bits"] | added}


def _mean(values: Bits) -> float:
    return float(np.mean(values))


def _system(measured: Sequence[Seed], name: str) -> dict[str, Any]:
    """Return every figure of one system, over the seeds that have it."""
    seeds = [m["bits"] for m in measured if name in m["bits"]]
    domains = measured[0]["domains"]
    above = [regrets(bits[name], bits["oracle"]) for bits in seeds]
    shares = [recovered(bits[name], base=bits["base"], own=bits["oracle"]) for bits in seeds]
    gains = [[s for s in share if s is not None] for share in shares]
    by_domain = [[s for s in row if s is not None] for row in zip(*shares, strict=True)]
    return {
        "bits": {d: over_seeds([b[name][k] for b in seeds]) for k, d in enumerate(domains)},
        "mean": over_seeds([_mean(bits[name]) for bits in seeds]),
        "worst": over_seeds([max(bits[name]) for bits in seeds]),
        "mean_regret": over_seeds([_mean(regret) for regret in above]),
        "worst_regret": over_seeds([max(regret) for regret in above]),
        "recovered": {
            d: over_seeds(share or [0.0]) for d, share in zip(domains, by_domain, strict=True)
        },
        "least_recovered": over_seeds([min(g) for g in gains if g] or [0.0]),
    }


def _rarity(measured: Sequence[Seed], scene: str) -> dict[str, Any]:
    """Return worst regrets of both routers while every domain is rare in turn."""
    turns, means = dict[str, Any](), list[tuple[float, float]]()
    for rare in measured[0]["domains"]:
        robust_name = "robust" if scene == "rare" else f"robust, few {rare}"
        average, robust = (
            [max(regrets(m["rarity"][name], m["bits"]["oracle"])) for m in measured]
            for name in (f"average, {scene} {rare}", robust_name)
        )
        means.append((_mean(robust), _mean(average)))
        turns[rare] = {
            "average": over_seeds(average),
            "robust": over_seeds(robust),
            "difference": over_seeds(regrets(robust, average)),
            "ratio": ratio(*means[-1]),
        }
    robust_mean, average_mean = np.mean(means, axis=0).tolist()
    return {"turns": turns, "ratio": ratio(robust_mean, average_mean)}


def _nested(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return numbers, or mappings of numbers, over seeds."""
    return {
        name: over_seeds([s[name] for s in seeds])
        if isinstance(value, float)
        else _nested([s[name] for s in seeds])
        for name, value in seeds[0].items()
    }


def _against(measured: Sequence[Seed], name: str) -> dict[str, Interval]:
    """Compare a monolith with the oracle, in units of the divergence, and with the router."""
    figures = dict[str, Interval]()
    bits = [m["bits"] for m in measured]
    above = [regrets(b[name], b["oracle"]) for b in bits]
    routed = [regrets(b["robust"], b["oracle"]) for b in bits]
    takes: Mapping[str, Callable[[Bits], float]] = {"mean": _mean, "worst": max}
    for where, take in takes.items():
        for what, unit in (("passage", "bits_per_byte"), ("token", "token_bits_per_byte")):
            units = [m["divergence"][unit] for m in measured]
            gaps = [take(a) / u for a, u in zip(above, units, strict=True)]
            figures[f"{where}_gap_{what}_share"] = over_seeds(gaps)
        less = [take(r) - take(a) for r, a in zip(routed, above, strict=True)]
        figures[f"router_less_{where}"] = over_seeds(less)
    worst = over_seeds([max(b["robust"]) - max(b[name]) for b in bits])
    return {**figures, "router_less_worst_bits": worst}


def _product(seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not seeds:
        return None
    changed = [s["changed"] for s in seeds]
    lost = [_differences(c, "with") for c in changed]
    left = [_differences(c, "after") for c in changed]
    return {
        "seeds": len(seeds),
        "seconds": over_seeds([s["seconds"] for s in seeds]),
        "router_seconds": over_seeds([s["router_seconds"] for s in seeds]),
        "weights": [s["weights"] for s in seeds],
        "changed": changed,
        "router_restored": all(c["router_restored"] for c in changed),
        "remove_seconds": over_seeds([c["remove_seconds"] for c in changed]),
        "most_lost": max(max(each) for each in lost),
        "most_left": max(abs(x) for each in left for x in each),
    }


def _differences(change: Mapping[str, Any], when: str) -> list[float]:
    return regrets(change[when], change["before"])


def page(metrics: Metrics) -> str:
    """Return the page for metrics of the schema ``red-lab.generative/2``."""
    return render("generative", metrics)


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
