"""Run `redhost lab red`: seeds of one task, protocol and backbone, each saved when it finishes."""

from __future__ import annotations

import logging
import resource
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

import redhost
from red_lab.metrics import cached_json, write_results
from red_lab.models import open_source
from red_lab.progress import shown
from red_lab.red.ablations import BASE_SHARES, ablate, at_share
from red_lab.red.base import FrozenBase, train_base
from red_lab.red.cut import Below, below
from red_lab.red.measure import Plan, RedSetting, measure
from red_lab.red.queries import Data, load
from red_lab.red.report import draw, page, write_overview
from red_lab.red.summary import summarise, table
from red_lab.study import timed

__all__ = ["Seed", "run"]

log = logging.getLogger("red_lab")


def run(plan: Plan, *, out: Path, work: Path) -> Path:
    """Run every seed that is not on disk yet, and write metrics.json with its page.

    Args:
        plan: Settings of the run.
        out: Folder of the results, in a folder named after the plan.
        work: Folder of hidden states, bases and the results of single seeds.

    Returns:
        The path of metrics.json.
    """
    work.mkdir(parents=True, exist_ok=True)
    seeds = [Seed(plan, number, work) for number in range(plan.seeds)]
    measured = [s.cached("", s.measured) for s in seeds]
    datasets = [s.data for s in seeds]
    metrics = summarise(plan, measured, datasets)
    if plan.ablations:
        ablated = [s.cached("-ablations", s.ablated) for s in seeds]
        metrics["ablations"] = {k: table([a[k] for a in ablated], datasets) for k in ablated[0]}
    if plan.shares:
        metrics["shares"] = table([s.cached("-shares", s.shares) for s in seeds], datasets)
    path = write_results(metrics, out / plan.name, page=page, draw=draw, sort_keys=False)
    write_overview(out)
    return path


@dataclass(frozen=True)
class Seed:
    """One random seed: its questions and its stages, each computed on first use."""

    plan: Plan
    number: int
    work: Path

    @cached_property
    def data(self) -> Data:
        """The questions."""
        plan = self.plan
        return load(plan.task, plan.protocol, seed=self.number, stratified=plan.stratified)

    @cached_property
    def setting(self) -> RedSetting:
        """Budgets and seed."""
        gate = replace(self.plan.gate, seed=self.number)
        return RedSetting(budget=self.plan.budget, gate=gate, seed=self.number)

    @cached_property
    def backbone(self) -> redhost.Backbone:
        """The bare backbone."""
        opened = open_source(self.plan.backbone, seed=self.number, work=self.work)
        return opened.to(self.plan.device)

    @cached_property
    def hidden(self) -> Below:
        """H of every distinct question."""
        return below(
            self.backbone,
            self.data.texts(),
            last_blocks=self.plan.base.last_blocks,
            folder=self.work / "below",
            precision=self.plan.base.precision,
            progress=shown(f"{self.plan.name} {self.number}: trunk"),
        )

    def file(self, plan: Plan, suffix: str) -> Path:
        """Return the path of a file of this seed; its name depends on the questions."""
        return self.work / f"{plan.name}-{self.number}-{self.data.digest()}{suffix}"

    def base(self, plan: Plan) -> FrozenBase:
        """Return the base of a plan, from its file if that exists."""
        return train_base(
            self.backbone,
            self.hidden,
            self.data.train,
            settings=replace(plan.base, seed=self.number),
            checkpoint=self.file(plan, ".safetensors"),
            progress=shown(f"{plan.name} {self.number}: base"),
        )

    def cached(self, suffix: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a stored result, or compute and store it."""
        return cached_json(self.file(self.plan, f"{suffix}.json"), make)

    def measured(self) -> dict[str, Any]:
        """Run the four stages."""
        seconds: dict[str, float] = {}
        with timed(seconds, "open"):
            trunk = self.backbone.trunk
        base = self.base(self.plan)
        seconds |= {"trunk": self.hidden.seconds, "base": base.seconds}
        with timed(seconds, "after base"):
            result = measure(base, self.data, setting=self.setting, progress=self._say)
        return {
            **result,
            "seed": self.number,
            "stages": seconds,
            "trunk_parameters": sum(p.numel() for p in trunk.model.parameters()),
            "distinct": len(self.hidden.place),
            "peak_memory_mb": _peak(self.plan.device),
        }

    def ablated(self) -> dict[str, Any]:
        """Vary ranks, recipe and noise."""
        base = self.base(self.plan)
        return dict(ablate(base, self.data, setting=self.setting, progress=self._say))

    def shares(self) -> dict[str, Any]:
        """Train bases on shares of the questions; experts are still trained on all of them."""
        shares = {}
        for share in BASE_SHARES:
            plan = replace(self.plan, base=replace(self.plan.base, share=share))
            self._say(f"base on {share:.0%}")
            base = self.base(plan)
            shares[f"{share:.0%}"] = at_share(base, self.data, setting=self.setting)
        return shares

    def _say(self, what: str) -> None:
        log.info("%s %s: %s", self.plan.name, self.number, what)


def _peak(device: str) -> float:
    """Return the peak memory so far in MiB, of the device or of the process."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
