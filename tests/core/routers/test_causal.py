"""The causal kinds: one training, two outputs, regrets in nats of what the kind answers with."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

import redhost
from redhost.core.experts import LowRank
from redhost.core.routers.base import ColumnData, Judged
from redhost.core.routers.causal import CausalMixtureRouter, CausalRouter
from redhost.core.sketch import sketch
from redhost.core.statistics import Statistics

WIDTH, TOKENS, ROWS = 8, 34, 200
COLUMNS = ("a", "b", "backbone")
ANSWERS = {"a": 3, "b": 7}


@dataclass(frozen=True)
class Rows:
    """Tokens of one domain; `target` is what follows them."""

    h: Tensor
    target: Tensor


@pytest.fixture(scope="module")
def bus() -> redhost.Bus:
    """Return two experts that each add several nats to one token, whatever they read."""
    head = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))

    def says(token: int) -> redhost.Expert:
        U = torch.zeros(WIDTH, WIDTH)
        U[0, :2] = 1.0
        V = torch.zeros(WIDTH, WIDTH)
        V[:, 0] = 2 * head[token]
        return LowRank(U=U, V=V, activation="gelu", space="hidden")

    config = redhost.BusConfig(width=WIDTH, labels=())
    return redhost.Bus(
        norm=redhost.LayerNorm(width=WIDTH, eps=1e-5),
        router=redhost.build_router("linear", config, COLUMNS, 0),
        experts={name: says(token) for name, token in ANSWERS.items()},
        classifier=head,
        task=redhost.Generation(),
        backbone_column=True,
    )


@pytest.fixture(scope="module")
def rows(bus: redhost.Bus) -> dict[str, dict[str, Rows]]:
    """Return two domains that overlap, so that a router has something to lose."""
    generator = torch.Generator().manual_seed(1)

    def some(name: str) -> Rows:
        h = torch.randn(ROWS, WIDTH, generator=generator)
        h[:, :2] += 2.0
        h[:, 2] += 0.7 if name == "a" else -0.7
        return Rows(h, torch.full((ROWS,), ANSWERS[name]))

    return {name: {part: some(name) for part in ("fit", "gate")} for name in ANSWERS}


def judged(bus: redhost.Bus, rows: Rows) -> Judged:
    with torch.no_grad():
        z = bus.norm(rows.h)
        told = sketch(bus, rows.h, z, rows.target)
        return Judged(z, told.alone().exp(), told)


def train(bus: redhost.Bus, rows: dict[str, dict[str, Rows]], made: CausalRouter) -> CausalRouter:
    data = []
    for name, parts in rows.items():
        fit, gate = judged(bus, parts["fit"]), judged(bus, parts["gate"])
        sums = Statistics.of_rows(fit.z, ["x"] * ROWS)
        data.append(ColumnData(column=name, z=fit.z, statistics=sums, sketch=fit.sketch, gate=gate))
    made.finish(data, steps=20)
    return made


@pytest.fixture(scope="module")
def summed(bus, rows) -> CausalRouter:
    return train(bus, rows, CausalRouter(width=WIDTH, columns=COLUMNS))


@pytest.fixture(scope="module")
def mixed(bus, rows) -> CausalRouter:
    return train(bus, rows, CausalMixtureRouter(width=WIDTH, columns=COLUMNS))


def test_both_kinds_are_one_training(summed, mixed) -> None:
    assert summed.output == "residual" and mixed.output == "mixture"
    for name, weights in summed.state_dict().items():
        assert torch.equal(mixed.state_dict()[name], weights)
        assert weights.abs().max() > 0


@torch.inference_mode()
def lost(bus: redhost.Bus, rows: Rows, router: CausalRouter, *, own: int) -> float:
    """Return nats a token lost beside the own expert, from the bus itself: no sketch."""
    z = bus.norm(rows.h)
    alpha, alone = torch.softmax(router(z), -1), torch.zeros(ROWS, len(COLUMNS))
    alone[:, own] = 1.0
    answer = bus.mixture if router.output == "mixture" else bus.probabilities
    told = [f(rows.h, z, a) for f, a in ((bus.probabilities, alone), (answer, alpha))]
    best, found = (p.gather(1, rows.target[:, None]).log().mean() for p in told)
    return float(best - found)


@pytest.mark.parametrize("kind", ["summed", "mixed"])
def test_regrets_are_nats_of_what_the_kind_answers_with(bus, rows, kind, request) -> None:
    router = request.getfixturevalue(kind)
    assert router.found is not None
    for own, name in enumerate(ANSWERS):
        nats = lost(bus, rows[name]["gate"], router, own=own)
        # With all tokens but one among the candidates a sketch is exact.
        assert router.found.regrets[name] == pytest.approx(nats, rel=1e-3)
    assert router.found.regret == max(router.found.regrets.values()) > 0


def test_an_expert_gains_nats_here_so_that_shares_would_be_told_apart(bus, rows) -> None:
    for own, name in enumerate(ANSWERS):
        told = judged(bus, rows[name]["gate"]).likelihood.log()
        assert float((told[:, own] - told[:, -1]).mean()) > 3


def test_the_two_outputs_lose_differently(summed, mixed) -> None:
    assert summed.found.regrets != pytest.approx(mixed.found.regrets, rel=0.02)
