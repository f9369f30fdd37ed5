"""`redhost lab stacking`: what experts read, and the reason against it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from red_lab.stacking import PENALTIES, WAYS, run_through

from redhost.core.bus.bus import LayerNorm
from redhost.core.bus.experts import LowRank

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "stacking"
METRICS = json.loads((RESULTS / "metrics.json").read_text("utf-8"))
NORM = LayerNorm(width=4, eps=1e-5)


def expert(seed: int) -> LowRank:
    drawn = torch.Generator().manual_seed(seed)
    u, v = (torch.randn(*shape, generator=drawn) for shape in ((2, 4), (4, 2)))
    return LowRank(
        U=u, u=torch.zeros(2), V=v, v=torch.zeros(4), activation="gelu", space="hidden", labels=()
    ).requires_grad_(False)


def test_what_stands_on_another_reads_its_states_and_what_stands_beside_it_does_not() -> None:
    h = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    first, second = expert(1), expert(2)
    below = h + first(NORM(h))
    stacked = run_through(h, [first, second], way="stacked", norm=NORM)
    assert torch.equal(stacked, below + second(NORM(below)))
    beside = run_through(h, [first, second], way="side by side", norm=NORM)
    assert torch.equal(beside, below + second(NORM(h)))
    assert not torch.equal(stacked, beside)
    # In whatever order they come, what stands side by side is the same sum.
    turned = run_through(h, [second, first], way="side by side", norm=NORM)
    assert torch.allclose(turned, beside, atol=1e-6)


def test_every_way_is_measured_under_every_penalty() -> None:
    ways = [(row["penalty"], row["way"]) for row in METRICS["systems"]]
    assert ways == [(penalty, way) for penalty in PENALTIES for way in WAYS]


def test_the_reason_against_it_is_what_was_measured() -> None:
    stacked, beside = METRICS["systems"][:2]
    assert stacked["all"]["low"] == pytest.approx(1.0) == beside["withdrawn"]["low"]
    assert stacked["withdrawn"]["high"] < 0.96 and beside["changed by withdrawal"]["high"] == 0
