"""Run one seed of `redhost lab red`: four stages and every system, on one set of features."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from red_lab.red.base import RECIPES, BaseSettings, FrozenBase
from red_lab.red.cut import Precision
from red_lab.red.experts import NAMES, Budget, Family, Outputs, train_family, train_monolith
from red_lab.red.gate import (
    Gate,
    GateSettings,
    centroid,
    oracle,
    train_end_to_end,
    train_jointly,
    train_supervised,
)
from red_lab.red.judge import flipped, hits, judge, worst_case
from red_lab.red.queries import Data, Protocol, Query, Task

__all__ = ["SHARES", "Plan", "RedSetting", "measure", "usual"]

SHARES = (0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""q of the routing-error curves."""

PENALTY = 0.1
"""λ of the systems with the off-domain penalty."""

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class RedSetting:
    """Training settings after the base stage, with one budget for all systems."""

    budget: Budget
    gate: GateSettings
    seed: int


USUAL: Mapping[tuple[str, Task, Protocol], tuple[str, Precision]] = {
    ("tiny", "mixed", "held-out"): ("fourier-tiny", "float32"),
    ("smollm2", "addition", "held-out"): ("fourier", "bfloat16"),
    ("smollm2", "mixed", "seed"): ("seed", "bfloat16"),
    ("smollm2", "mixed", "held-out"): ("fourier", "bfloat16"),
}
"""Recipe and precision that differ from the defaults. The seed's head memorises its training
questions and fails on held-out ones; longer questions take half as long in half precision."""


def usual(backbone: str, task: Task, protocol: Protocol) -> tuple[str, Precision]:
    """Return the default recipe and precision of the base stage."""
    return USUAL.get((backbone, task, protocol), ("seed", "float32"))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of a run.

    Attributes:
        task: ``addition`` or ``mixed``.
        protocol: ``seed`` or ``held-out``.
        backbone: ``tiny``, ``smollm2``, ``gguf:FILE`` or ``hf:NAME``.
        seeds: Number of random seeds.
        stratified: Draw every range equally often.
        recipe: The name of the base stage's recipe in `RECIPES`.
        base: The base stage.
        budget: Training settings of every expert.
        gate: Training settings of every router.
        device: The device of the trunk and its top blocks.
        ablations: Also vary ranks, recipe and noise.
        shares: Also train bases on shares of the questions.
    """

    task: Task
    protocol: Protocol
    backbone: str
    seeds: int
    stratified: bool = False
    recipe: str = "seed"
    base: BaseSettings = field(default_factory=BaseSettings)
    budget: Budget = field(default_factory=Budget)
    gate: GateSettings = field(default_factory=GateSettings)
    device: str = "cpu"
    ablations: bool = False
    shares: bool = False

    @property
    def name(self) -> str:
        """The folder's name, which distinguishes this run from others."""
        source = "".join(c if c.isalnum() else "-" for c in self.backbone.rpartition("/")[2])
        parts = [source, self.task, self.protocol]
        if self.stratified:
            parts.append("stratified")
        written = RECIPES[self.recipe]
        recipe, precision = usual(self.backbone, self.task, self.protocol)
        half = self.base.precision == "bfloat16"
        changes = {
            self.recipe: self.recipe != recipe,
            f"top{self.base.last_blocks}": self.base.last_blocks != written.last_blocks,
            f"epochs{self.base.epochs}": self.base.epochs != written.epochs,
            "bf16" if half else "fp32": self.base.precision != precision,
            f"share{round(100 * self.base.share)}": self.base.share != 1.0,
            self.device: self.device != "cpu",
        }
        parts += [part for part, changed in changes.items() if changed]
        return "-".join(parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Test:
    """The test questions with the base's features of them."""

    queries: Sequence[Query]
    h: Tensor
    classifier: Tensor

    def outputs(self, family: Family) -> Outputs:
        return family.outputs(self.h, self.classifier)


def measure(
    base: FrozenBase, data: Data, *, setting: RedSetting, progress: Progress
) -> dict[str, Any]:
    """Train experts and routers on a base, and evaluate every system.

    Args:
        base: The frozen base.
        data: The questions.
        setting: Budgets and random seed.
        progress: Called with a description of the current step.
    """
    test = _Test(queries=data.test, h=base.h[base.rows(data.test)], classifier=base.classifier)
    start = time.perf_counter()
    families = _families(base, data.train, setting, progress)
    progress("routers")
    gate = train_supervised(base, data.train, settings=setting.gate)
    routed = time.perf_counter()
    systems = _systems(base, data.train, test, families, gate, setting)
    rows = {name: judge(p, data.test) for name, p in systems.items()}
    residual = families["residual"]
    alpha = gate.weights(test.h)
    return {
        "systems": rows,
        "hits": {name: hits(p, data.test).tolist() for name, p in systems.items()},
        "router_accuracy": float((alpha.argmax(-1) == oracle(data.test).argmax(-1)).float().mean()),
        "relative_size": dict(zip(NAMES, residual.relative_size(test.h), strict=True)),
        "cosine": _cosine(residual, test, alpha),
        "curves": _curves(test, families, alpha, seed=setting.seed),
        "confusion": _confusion(alpha, data.test),
        "parameters": {n: f.parameters for n, f in families.items()}
        | {"router": sum(p.numel() for p in gate.parameters())},
        "flops": _flops(base, families),
        "seconds": {n: f.seconds for n, f in families.items()}
        | {"routers": routed - start - sum(f.seconds for f in families.values())},
    }


def _families(
    base: FrozenBase, train: Sequence[Query], setting: RedSetting, progress: Progress
) -> dict[str, Family]:
    families = {}
    for form in ("linear", "mlp", "residual", "logits"):
        progress(f"experts: {form}")
        families[form] = train_family(
            base, train, form=form, budget=setting.budget, seed=setting.seed
        )
    progress("experts: residual with the off-domain penalty")
    penalised = replace(setting.budget, off_domain=PENALTY)
    families["quiet"] = train_family(
        base, train, form="residual", budget=penalised, seed=setting.seed
    )
    progress("monolith")
    families["monolith"] = train_monolith(base, train, budget=setting.budget, seed=setting.seed)
    return families


def _systems(
    base: FrozenBase,
    train: Sequence[Query],
    test: _Test,
    families: Mapping[str, Family],
    gate: Gate,
    setting: RedSetting,
) -> dict[str, Tensor]:
    """Return p(y|x) ``(N, C)`` of every system by name."""
    alpha = gate.weights(test.h)
    uniform = torch.full_like(alpha, 1 / len(NAMES))
    best = oracle(test.queries)
    hard = torch.nn.functional.one_hot(alpha.argmax(-1), len(NAMES)).float()
    near = centroid(base, train, test.h)
    outputs = {n: test.outputs(f) for n, f in families.items() if n != "monolith"}
    one = torch.ones(len(test.h), 1)
    systems = {
        "global head": torch.softmax(test.h @ base.classifier.T, -1),
        "monolith": test.outputs(families["monolith"]).residual(one),
        "best single residual expert": _best_single(outputs["residual"], test.queries),
    }
    for form in ("linear", "mlp", "residual"):
        systems[f"oracle, {form}"] = outputs[form].mixture(best)
        systems[f"uniform probabilities, {form}"] = outputs[form].mixture(uniform)
        systems[f"MoE, {form}"] = outputs[form].mixture(alpha)
        systems[f"averaged logits, {form}"] = outputs[form].residual(uniform)
    red = outputs["residual"]
    systems |= {
        "uniform residuals": red.residual(uniform),
        "RED, hard top-1": red.residual(hard),
        "RED, nearest centroid": red.residual(near),
        "RED": red.residual(alpha),
        "RED, logit-space experts": outputs["logits"].residual(alpha),
        "RED, off-domain penalty": outputs["quiet"].residual(alpha),
        "MoE, off-domain penalty": outputs["quiet"].mixture(alpha),
        "sum without a router": red.residual(torch.ones_like(alpha)),
        "sum without a router, off-domain penalty": outputs["quiet"].residual(
            torch.ones_like(alpha)
        ),
    }
    return systems | _end_to_end(base, train, test, families, gate, setting)


def _end_to_end(
    base: FrozenBase,
    train: Sequence[Query],
    test: _Test,
    families: Mapping[str, Family],
    gate: Gate,
    setting: RedSetting,
) -> dict[str, Tensor]:
    """Return the systems whose router is trained end to end, and the jointly trained system."""
    systems = {}
    for name, form, combine in (
        ("RED, router end to end", "residual", Outputs.residual),
        ("MoE, residual, router end to end", "residual", Outputs.mixture),
        ("MoE, linear, router end to end", "linear", Outputs.mixture),
    ):
        own = train_end_to_end(base, train, families[form], combine, settings=setting.gate)
        systems[name] = combine(test.outputs(families[form]), own.weights(test.h))
    family, joint = train_jointly(
        base, train, families["residual"], gate, settings=replace(setting.gate, epochs=8)
    )
    systems["RED, joint integration"] = test.outputs(family).residual(joint.weights(test.h))
    return systems


def _best_single(outputs: Outputs, queries: Sequence[Query]) -> Tensor:
    """Return p of the single expert that is best on these same rows, an optimistic baseline."""
    alone = outputs.each().unbind(1)
    return max(alone, key=lambda p: float(hits(p, queries).mean()))


def _curves(
    test: _Test, families: Mapping[str, Family], alpha: Tensor, *, seed: int
) -> dict[str, dict[str, list[float]]]:
    """Return accuracy against q, for routes flipped at random and for mass moved adversarially."""
    curves: dict[str, dict[str, list[float]]] = {"flipped": {}, "worst": {}}
    for name, family, residual in (
        ("RED", "residual", True),
        ("MoE, residual", "residual", False),
        ("MoE, linear", "linear", False),
        ("RED, off-domain penalty", "quiet", True),
        ("MoE, off-domain penalty", "quiet", False),
    ):
        outputs = test.outputs(families[family])
        combine = outputs.residual if residual else outputs.mixture
        curves["flipped"][name] = [
            float(hits(combine(flipped(alpha, q, seed=seed)), test.queries).mean()) for q in SHARES
        ]
        curves["worst"][name] = [
            worst_case(outputs, alpha, q, test.queries, residual=residual) for q in SHARES
        ]
    return curves


def _confusion(alpha: Tensor, queries: Sequence[Query]) -> list[list[float]]:
    """Return the mean α of each range's questions, ``(E, E)``."""
    owner = torch.tensor([NAMES.index(q.domain) for q in queries])
    return [
        alpha[owner == k].mean(0).tolist() if bool((owner == k).any()) else [0.0] * len(NAMES)
        for k in range(len(NAMES))
    ]


def _cosine(family: Family, test: _Test, alpha: Tensor) -> dict[str, float | None]:
    """Return the mean cosine of h and h + Σ α_i Δ_i (RED's drift) over each range's questions."""
    moved = torch.cosine_similarity(test.h, family.moved(test.h, alpha), dim=-1)
    owner = oracle(test.queries).argmax(-1)
    return {
        name: float(moved[owner == k].mean()) if bool((owner == k).any()) else None
        for k, name in enumerate(NAMES)
    }


def _flops(base: FrozenBase, families: Mapping[str, Family]) -> dict[str, int]:
    """Return multiply-adds of one row above the trunk, by family: two for each weight."""
    head = 2 * base.classifier.numel()
    return {n: 2 * f.parameters + head for n, f in families.items()}
