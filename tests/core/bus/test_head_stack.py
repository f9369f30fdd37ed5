"""Experts with labels of their own, many at once: each to the bits that it has alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import redhost
from redhost.core.bus.bus import LayerNorm, Readout
from redhost.core.bus.experts import ClassifierExpert, Linear
from redhost.core.bus.head_stack import head_stacks
from redhost.core.bus.strategies import ForwardStrategy
from redhost.core.routers.linear import LinearRouter

D = 24


def draw(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def head(form: str, n: int, *, labels: Sequence[str] = (), rank: int = 4) -> redhost.Expert:
    """Return an expert of a form; `deep` is not folded, as it has no fewer labels than rank."""
    labels = labels or [f"{form} {n} {y}" for y in range({"deep": 6}.get(form, 3))]
    if form == "linear":
        weight, bias = draw(len(labels), D, seed=n), draw(len(labels), seed=n + 50)
        return Linear(W=weight, b=bias, space="labels", labels=labels, temperature=1.3 + n)
    return ClassifierExpert(
        U=draw(rank, D, seed=n),
        V=draw(D, rank, seed=n + 20),
        W=draw(len(labels), D, seed=n + 30),
        b=draw(len(labels), seed=n + 40),
        activation="gelu",
        labels=labels,
        temperature=0.7 + n,
    )


def bus(experts: dict[str, redhost.Expert], *, strategy: ForwardStrategy = "dense") -> redhost.Bus:
    columns = (*sorted(experts), "backbone")
    router = LinearRouter(width=D, columns=columns)
    for p in router.parameters():
        torch.nn.init.normal_(p, generator=torch.Generator().manual_seed(9))
    made = redhost.Bus(
        Readout(),
        norm=LayerNorm(width=D, eps=1e-5),
        router=router,
        experts=experts,
        backbone_column=True,
        strategy=strategy,
    )
    return made.eval().requires_grad_(False)


@pytest.mark.parametrize("form", ["linear", "folded", "deep"])
@pytest.mark.parametrize("batch", [1, 2, 7, 64])
def test_an_expert_gives_the_same_bits_in_a_stack_of_any_size(form, batch) -> None:
    experts = {n: head(form, n).folded() for n in range(5)}
    [stack] = head_stacks(experts)
    z = draw(batch, D, seed=3)
    made = stack(z)
    assert stack.columns == (0, 1, 2, 3, 4)
    for n, expert in experts.items():
        [alone] = head_stacks({n: expert})
        assert torch.equal(made[n], alone(z)[0])
        torch.testing.assert_close(made[n], expert(z), atol=1e-5, rtol=1e-5)


def test_only_what_is_alike_is_stacked() -> None:
    experts = {
        0: head("linear", 0),
        1: head("folded", 1).folded(),
        2: head("linear", 2),
        3: head("folded", 3, rank=5).folded(),
        4: head("linear", 4, labels=["a", "b"]),
    }
    assert [s.columns for s in head_stacks(experts)] == [(0, 2), (1,), (3,), (4,)]


def test_the_bus_answers_the_same_with_stacks_and_without() -> None:
    """Forms side by side, labels shared between experts that are and are not stacked."""
    experts = {
        "a": head("linear", 0, labels=["x", "y", "z"]),
        "b": head("folded", 1, labels=["z", "y", "w"]),
        "c": head("linear", 2, labels=["y", "x", "v"]),
        "d": head("deep", 3),
    }
    stacked, single = bus(experts), bus(experts, strategy="grouped")
    assert len(stacked.ensemble.head_stacks) == 3 and not len(single.ensemble.head_stacks)
    h = draw(9, D, seed=8)
    (p, alpha), (q, beta) = stacked(h), single(h)
    assert torch.equal(alpha, beta)
    torch.testing.assert_close(p, q, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(p.sum(-1), torch.ones(9))


@pytest.mark.parametrize("strategy", ["dense", "grouped"])
def test_own_answers_are_those_of_each_alone(strategy) -> None:
    experts = {f"e{n}": head(("linear", "folded", "deep")[n % 3], n) for n in range(7)}
    made = bus(experts, strategy=strategy)
    h = draw(5, D, seed=1)
    z, found = made.norm(h), dict[int, torch.Tensor]()
    for columns, ps in made.own_answers(h, z):
        found |= zip(columns, ps, strict=True)
    assert sorted(found) == list(range(7))
    for k, p in found.items():
        torch.testing.assert_close(p, made.own_answer(h, z, k), atol=1e-6, rtol=1e-5)
        assert p.shape == (5, len(made.answered_by(k)))
        one = bus({made.ids[k]: experts[made.ids[k]]}, strategy=strategy)
        [(_, alone)] = one.own_answers(h, one.norm(h))
        assert torch.equal(p, alone[0])


def test_a_router_learns_through_a_stack() -> None:
    made = bus({f"e{n}": head("linear", n) for n in range(4)})
    for p in made.router.parameters():
        p.requires_grad_()
    p, _ = made(draw(6, D, seed=2))
    p[:, 3].log().sum().backward()
    assert any(bool(p.grad.abs().sum() > 0) for p in made.router.parameters())
