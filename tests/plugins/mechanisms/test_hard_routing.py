"""Hard routing: each row its expert, each expert its rows, and a router that learns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.hard_routing import HardRouting
from torch import Tensor, nn

D, E = 8, 4


class SeedsRouting(nn.Module):
    """The seed's: an argmax without a gradient, and expert 0 on all rows to learn a shape."""

    def __init__(self, *, router: nn.Module, experts: list[nn.Linear]) -> None:
        super().__init__()
        self.router, self.experts = router, nn.ModuleList(experts)

    def forward(self, x: Tensor) -> Tensor:
        index = self.router(x).argmax(-1)
        y = torch.zeros_like(self.experts[0](x))
        for i, expert in enumerate(self.experts):
            if (index == i).any():
                y[index == i] = expert(x[index == i])
        return y


@pytest.fixture
def experts(linears) -> list[nn.Linear]:
    return linears(E, D, 5)


@pytest.fixture
def router(linears) -> nn.Linear:
    return linears(1, D, E, seed=2)[0]


def rows_computed(module: nn.Module, experts: list[nn.Linear], x: Tensor) -> int:
    seen: list[int] = []
    hooks = [e.register_forward_hook(lambda _m, a, _o: seen.append(len(a[0]))) for e in experts]
    module(x)
    for hook in hooks:
        hook.remove()
    return sum(seen)


def test_calls_sum_to_n(router, experts, rows) -> None:
    x = rows(12)
    assert rows_computed(SeedsRouting(router=router, experts=experts), experts, x) == 24
    assert rows_computed(HardRouting(router=router, experts=experts), experts, x) == 12


def test_the_router_has_a_gradient(router, experts, rows) -> None:
    SeedsRouting(router=router, experts=experts)(rows(12)).square().sum().backward()
    assert router.weight.grad is None
    HardRouting(router=router, experts=experts)(rows(12)).square().sum().backward()
    assert router.weight.grad.abs().sum() > 0


def test_the_gradient_is_the_training_rules(router, experts, rows) -> None:
    x = rows(12)
    HardRouting(router=router, experts=experts)(x).square().sum().backward()
    found = router.weight.grad.clone()
    router.zero_grad()
    top, index = router(x).softmax(-1).max(-1)
    answers = torch.stack([e(x) for e in experts], 1)[torch.arange(12), index].detach()
    (top * (2 * answers * answers).sum(-1)).sum().backward()
    torch.testing.assert_close(found, router.weight.grad)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.integers(0, 8), st.integers(0, 100))
def test_each_row_is_answered_by_its_expert(linears, rows, n: int, seed: int) -> None:
    experts, (router,) = linears(E, D, 5), linears(1, D, E, seed=2)
    x = rows(n, seed=seed)
    y = HardRouting(router=router, experts=experts)(x)
    chosen = router(x).argmax(-1)
    for i, expert in enumerate(experts):
        # On the very same rows, so bit for bit.
        assert torch.equal(y[chosen == i], expert(x[chosen == i]))


def test_permuting_the_experts_changes_nothing(router, experts, rows) -> None:
    options = [2, 0, 3, 1]
    shuffled = nn.Linear(D, E)
    with torch.no_grad():
        shuffled.weight.copy_(router.weight[options])
        shuffled.bias.copy_(router.bias[options])
    one = HardRouting(router=router, experts=experts)
    two = HardRouting(router=shuffled, experts=[experts[i] for i in options])
    torch.testing.assert_close(one(rows(9)), two(rows(9)))


def test_the_router_counts_the_experts(linears, experts) -> None:
    with pytest.raises(ValueError, match="4 experts take 4 logits, found a router that gives 3"):
        HardRouting(router=linears(1, D, 3)[0], experts=experts)
    with pytest.raises(ValueError, match="router takes width 6, expert 0 takes width 8"):
        HardRouting(router=linears(1, 6, E)[0], experts=experts)
