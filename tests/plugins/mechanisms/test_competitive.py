"""Winner takes all: one answer forward, all answers in the selector's gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.competitive import WinnerTakesAll
from torch import Tensor, nn

D, E = 8, 4


class ClaimsStraightThrough(nn.Module):
    """The seed's: an argmax, and a comment."""

    def __init__(self, *, selector: nn.Module, parts: list[nn.Linear]) -> None:
        super().__init__()
        self.selector, self.parts = selector, nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        winner = self.selector(x).argmax(-1)
        return torch.stack([p(x) for p in self.parts], -2)[torch.arange(len(x)), winner]


@pytest.fixture
def selector(linears) -> nn.Linear:
    return linears(1, D, E, seed=2)[0]


def test_the_selector_has_a_gradient(selector, linears, rows) -> None:
    ClaimsStraightThrough(selector=selector, parts=linears(E))(rows(6)).square().sum().backward()
    assert selector.weight.grad is None
    WinnerTakesAll(selector=selector, parts=linears(E))(rows(6)).square().sum().backward()
    assert selector.weight.grad.any()


def test_the_gradient_is_that_of_the_soft_mixture(selector, linears, rows) -> None:
    parts, x, slope = linears(E), rows(6), rows(6, seed=3)
    (slope * WinnerTakesAll(selector=selector, parts=parts)(x)).sum().backward()
    found = selector.weight.grad.clone()
    selector.zero_grad()
    answers = torch.stack([p(x) for p in parts], -2).detach()
    (slope * (selector(x).softmax(-1)[..., None] * answers).sum(-2)).sum().backward()
    torch.testing.assert_close(found, selector.weight.grad)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.integers(0, 6), st.integers(0, 100))
def test_forward_is_one_hot(linears, rows, n: int, seed: int) -> None:
    parts, (selector,), x = linears(E), linears(1, D, E, seed=2), rows(n, seed=seed)
    module = WinnerTakesAll(selector=selector, parts=parts)
    weights = module.selection(x)
    assert torch.equal(weights, nn.functional.one_hot(selector(x).argmax(-1), E).float())
    expected = ClaimsStraightThrough(selector=selector, parts=parts)(x)
    assert torch.equal(module(x), expected)


def test_losers_are_not_trained(selector, linears, rows) -> None:
    parts, x = linears(E), rows(1)
    WinnerTakesAll(selector=selector, parts=parts)(x).square().sum().backward()
    winner = int(selector(x).argmax())
    trained = [bool(p.weight.grad.any()) for p in parts]
    assert trained == [i == winner for i in range(E)]


def test_the_selector_counts_the_parts(linears) -> None:
    with pytest.raises(ValueError, match="4 experts take 4 logits, found a selector that gives 3"):
        WinnerTakesAll(selector=linears(1, D, 3)[0], parts=linears(E))
