"""Gaussian classes in five domains, and a recipe that takes no time."""

from __future__ import annotations

import pytest
import torch
from red_lab.matched import EVIDENCE, RED
from red_lab.matched.apart import ComposedSystem, train_experts, train_gate
from red_lab.matched.data import DataPart, Problem
from red_lab.matched.systems import Recipe

from redhost.core.bus.bus import LayerNorm

DOMAINS = ("a", "b", "c", "d", "e")
LABELS = tuple((f"{d}0", f"{d}1", f"{d}2") for d in DOMAINS)
WIDTH, CLASSES = 16, 15
SHORT = Recipe(epochs=3, batch=32, learning_rate=1e-2, weight_decay=0.01, dropout=0.1)
SYSTEMS = ["dense head", "soft MoE", "sparse top-2 MoE", RED, EVIDENCE]


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def made_up(kind: str, *, rows: int = 150, seed: int = 0) -> Problem:
    """Return Gaussian classes; through a random classifier, or with labels of the experts'."""
    generator = torch.Generator().manual_seed(seed)
    means = 1.5 * torch.randn(CLASSES, WIDTH, generator=generator)
    norm = LayerNorm(width=WIDTH, eps=1e-5)

    def part() -> DataPart:
        target = torch.arange(rows) % CLASSES
        h = means[target] + torch.randn(rows, WIDTH, generator=generator)
        return DataPart(h=h, z=norm(h), target=target, owner=target // 3)

    train, valid, test = part(), part(), part()
    shared = 0.3 * torch.randn(CLASSES, WIDTH, generator=generator)
    return Problem(
        name=kind,
        domains=DOMAINS,
        labels_of=LABELS,
        train=train,
        valid=valid,
        test=test,
        clusters=tuple(f"{seed} {n // 2}" for n in range(rows)),
        norm=norm,
        classifier=shared if kind == "arithmetic" else None,
    )


@pytest.fixture(params=["arithmetic", "text"])
def problem(request) -> Problem:
    return made_up(request.param)


def no_progress(_: str) -> None:
    """Say nothing."""


def composed(problem: Problem, *, recipe: Recipe = SHORT) -> ComposedSystem:
    experts = train_experts(problem, recipe=recipe, seed=0, tick=no_progress)
    gate = train_gate(problem, recipe=recipe, seed=0, tick=no_progress)
    return ComposedSystem(experts=experts, router=gate, classifier=problem.classifier)
