"""Load balancing loss: 1 when uniform, E at collapse, and a gradient against overload."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms import top_k
from redhost_mechanisms.balance import load_balancing_loss
from torch import Tensor

E = 4


def seeds_loss(probabilities: Tensor) -> Tensor:
    """The seed's: two terms of the same probabilities, none of the counts."""
    mean, importance = probabilities.mean(0), probabilities.sum(0)
    return len(mean) * (mean**2).sum() + (importance.std() / importance.mean()) ** 2


def test_counts_matter() -> None:
    """All rows prefer expert 0 by a hair: probabilities are even, the load is not."""
    logits = torch.zeros(8, E)
    logits[:, 0] = 1e-3
    p = logits.softmax(-1)
    even = torch.arange(8).remainder(E).unsqueeze(1)
    assert seeds_loss(p) < 1.001
    collapsed = load_balancing_loss(p, p.argmax(-1, keepdim=True), coefficient=1.0)
    spread = load_balancing_loss(p, even, coefficient=1.0)
    torch.testing.assert_close(spread, torch.tensor(1.0))
    p0 = p[0, 0]
    torch.testing.assert_close(collapsed, E * p0)  # f = (1, 0, 0, 0)


@pytest.mark.filterwarnings("ignore:std\\(\\):UserWarning")
def test_one_expert_is_not_nan() -> None:
    p = torch.ones(3, 1)
    assert seeds_loss(p).isnan()
    loss = load_balancing_loss(p, torch.zeros(3, 1, dtype=torch.int64), coefficient=1.0)
    assert loss == 1


def test_collapse_gives_e() -> None:
    p = torch.tensor([[1.0, 0, 0, 0]]).expand(6, E)
    loss = load_balancing_loss(p, torch.zeros(6, 1, dtype=torch.int64), coefficient=1.0)
    assert loss == E


@pytest.mark.parametrize("k", [1, 2])
def test_the_gradient_lowers_the_overloaded_expert(rows, k: int) -> None:
    logits = rows(32, width=E)
    logits[:, 2] += 1.5
    logits.requires_grad_()
    before = logits.softmax(-1).mean(0)
    for _ in range(20):
        routing = top_k(logits, k=k)
        loss = load_balancing_loss(routing.probabilities, routing.indices, coefficient=1.0)
        (gradient,) = torch.autograd.grad(loss, logits)
        logits = (logits - 5 * gradient).detach().requires_grad_()
    after = logits.softmax(-1).mean(0)
    assert after[2] < before[2]
    assert after.max() - after.min() < before.max() - before.min()


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.integers(1, 6), st.integers(1, 9), st.integers(0, 100), st.data())
def test_the_equation_for_any_k(rows, experts: int, n: int, seed: int, data) -> None:
    k = data.draw(st.integers(1, experts))
    routing = top_k(rows(n, width=experts, seed=seed), k=k)
    p, indices = routing.probabilities, routing.indices
    f = [(indices == i).sum().item() / (n * k) for i in range(experts)]
    expected = 0.3 * experts * sum(f[i] * p[:, i].mean().item() for i in range(experts))
    loss = load_balancing_loss(p, indices, coefficient=0.3)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    grid = load_balancing_loss(p[None], indices[None], coefficient=0.3)
    assert torch.equal(grid, loss)


def test_coefficient_0_and_no_rows_give_0(rows) -> None:
    routing = top_k(rows(5, width=E), k=2)
    assert load_balancing_loss(routing.probabilities, routing.indices, coefficient=0.0) == 0
    empty = top_k(rows(0, width=E), k=2)
    assert load_balancing_loss(empty.probabilities, empty.indices) == 0


def test_low_precision_keeps_its_dtype(rows) -> None:
    p = rows(5, width=E).softmax(-1).bfloat16()
    assert load_balancing_loss(p, p.topk(1).indices).dtype == torch.bfloat16


def test_other_shapes_are_refused(rows) -> None:
    p = rows(5, width=E).softmax(-1)
    with pytest.raises(ValueError, match=r"rows \(5,\), found indices of rows \(4,\)"):
        load_balancing_loss(p, torch.zeros(4, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="4 experts, found the index 6"):
        load_balancing_loss(p, torch.full((5, 1), 6))
