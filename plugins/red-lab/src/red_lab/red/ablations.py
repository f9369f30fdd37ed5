"""Ablations of RED: rank, training recipe, the router's noise, and the base's training data.

Every ablation is a table of settings by systems; each cell holds the hits on the test questions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from red_lab.red.base import FrozenBase
from red_lab.red.experts import Budget, Family, normed, train_family, train_monolith
from red_lab.red.gate import Gate, GateSettings, oracle, shaken, train_supervised
from red_lab.red.judge import hits
from red_lab.red.measure import RedSetting
from red_lab.red.queries import Data, Query

__all__ = ["BASE_SHARES", "DIVISORS", "LITERAL", "NOISES", "Table", "ablate", "at_share"]

Table = dict[str, dict[str, list[float]]]
"""Setting → system → 1 or 0 for each test question."""

DIVISORS = (2, 4, 8, 16, 32)
"""R = D / divisor."""

NOISES = (0.0, 0.05, 0.2, 0.5)
"""p of the router's activity-scaled noise: standard deviation √(p |z|)."""

BASE_SHARES = (0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
"""Shares of the training questions that a base is trained on."""

LITERAL = Budget(epochs=8, batch=128, learning_rate=1e-4)
"""The seed's own budget (4.5.2), for experts and router alike."""


def ablate(
    base: FrozenBase, data: Data, *, setting: RedSetting, progress: Callable[[str], None]
) -> dict[str, Table]:
    """Vary ranks, recipe and noise on one base.

    Args:
        base: The frozen base.
        data: The questions.
        setting: Training settings of everything else.
        progress: Called with a description of the current step.
    """
    gate = train_supervised(base, data.train, settings=setting.gate)
    rows = base.h[base.rows(data.test)]
    alpha = gate.weights(rows)
    width = base.h.shape[1]
    tables: dict[str, Table] = {"rank": {}}
    for divisor in DIVISORS:
        progress(f"rank D/{divisor}")
        budget = replace(setting.budget, rank=max(1, width // divisor))
        family = train_family(base, data.train, form="residual", budget=budget, seed=setting.seed)
        tables["rank"][f"D/{divisor}"] = _red(base, family, rows, alpha, data.test)
    progress("the seed's literal recipe")
    tables["recipe"] = _recipes(base, data, rows, setting)
    progress("noise")
    tables["noise"] = _noises(base, data, rows, setting)
    return tables


def at_share(base: FrozenBase, data: Data, *, setting: RedSetting) -> dict[str, list[float]]:
    """Return the hits of the base alone, RED and the matched monolith on one base."""
    rows = base.h[base.rows(data.test)]
    gate = train_supervised(base, data.train, settings=setting.gate)
    family = train_family(
        base, data.train, form="residual", budget=setting.budget, seed=setting.seed
    )
    whole = train_monolith(base, data.train, budget=setting.budget, seed=setting.seed)
    alone = torch.softmax(rows @ base.classifier.T, -1)
    summed = whole.outputs(rows, base.classifier).residual(torch.ones(len(rows), 1))
    return {
        "base alone": hits(alone, data.test).tolist(),
        **_red(base, family, rows, gate.weights(rows), data.test),
        "monolith": hits(summed, data.test).tolist(),
    }


def _red(
    base: FrozenBase, family: Family, rows: Tensor, alpha: Tensor, queries: Sequence[Query]
) -> dict[str, list[float]]:
    """Return RED, the mixture over the same experts, and RED with label-informed routes."""
    outputs = family.outputs(rows, base.classifier)
    systems: Mapping[str, Tensor] = {
        "RED": outputs.residual(alpha),
        "MoE, residual": outputs.mixture(alpha),
        "oracle, residual": outputs.residual(oracle(queries)),
    }
    return {name: hits(p, queries).tolist() for name, p in systems.items()}


def _recipes(base: FrozenBase, data: Data, rows: Tensor, setting: RedSetting) -> Table:
    """Compare the budget of the main table with the seed's, for RED and for linear heads."""
    table: Table = {}
    literal = replace(setting.gate, epochs=8, learning_rate=1e-4)
    for name, budget, settings in (
        ("as in the main table", setting.budget, setting.gate),
        ("the seed's: 1e-4, 8 epochs", LITERAL, literal),
    ):
        alpha = train_supervised(base, data.train, settings=settings).weights(rows)
        family = train_family(base, data.train, form="residual", budget=budget, seed=setting.seed)
        heads = train_family(base, data.train, form="linear", budget=budget, seed=setting.seed)
        p = heads.outputs(rows, base.classifier).mixture(alpha)
        table[name] = _red(base, family, rows, alpha, data.test)
        table[name]["MoE, linear"] = hits(p, data.test).tolist()
    return table


def _noises(base: FrozenBase, data: Data, rows: Tensor, setting: RedSetting) -> Table:
    """Train routers with activity-scaled noise; test them without noise and with the most noise."""
    family = train_family(
        base, data.train, form="residual", budget=setting.budget, seed=setting.seed
    )
    outputs, owner = family.outputs(rows, base.classifier), oracle(data.test).argmax(-1)
    table: Table = {}
    for noise in NOISES:
        gate = train_supervised(base, data.train, settings=replace(setting.gate, poisson=noise))
        clean, noisy = gate.weights(rows), _weights_under_noise(gate, rows, setting.gate)
        table[f"p = {noise:g}"] = {
            "routes, clean z": (clean.argmax(-1) == owner).double().tolist(),
            "routes, noisy z": (noisy.argmax(-1) == owner).double().tolist(),
            "RED, clean z": hits(outputs.residual(clean), data.test).tolist(),
            "RED, noisy z": hits(outputs.residual(noisy), data.test).tolist(),
        }
    return table


def _weights_under_noise(gate: Gate, rows: Tensor, settings: GateSettings) -> Tensor:
    generator = torch.Generator().manual_seed(settings.seed + 1)
    with torch.inference_mode():
        return torch.softmax(gate(shaken(normed(rows), NOISES[-1], generator)), dim=-1)
