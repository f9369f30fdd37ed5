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
    winners, expected = selector(x).argmax(-1), torch.zeros(n, D)
    for i, part in enumerate(parts):
        expected[winners == i] = part(x[winners == i])
    assert torch.equal(module(x), expected)


class Counting(nn.Module):
    """A part that notes how many rows it ran on, and answers a constant on rows it lost."""

    def __init__(self, part: nn.Linear, bad: float | None = None) -> None:
        super().__init__()
        self.part, self.bad, self.rows = part, bad, 0
        self.input_width, self.output_width = part.in_features, part.out_features

    def forward(self, x: Tensor) -> Tensor:
        self.rows += len(x)
        y: Tensor = self.part(x)
        return y if self.bad is None else y * self.bad


def test_a_part_runs_only_on_rows_that_it_won_unless_the_selector_learns(
    selector, linears, rows
) -> None:
    parts, x = [Counting(part) for part in linears(E)], rows(12)
    module = WinnerTakesAll(selector=selector, parts=parts)
    with torch.no_grad():
        frozen = module(x)
    won = torch.bincount(selector(x).argmax(-1), minlength=E).tolist()
    assert [part.rows for part in parts] == won
    torch.testing.assert_close(module(x), frozen)
    assert [part.rows for part in parts] == [n + 12 for n in won]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_losing_part_that_is_not_finite_changes_no_other_row_and_no_gradient(
    selector, linears, rows, bad: float
) -> None:
    x, finite = rows(12), linears(E)
    winners = selector(x).argmax(-1)
    broken = int(winners[0])
    parts = [Counting(p, bad if i == broken else None) for i, p in enumerate(finite)]
    module, others = WinnerTakesAll(selector=selector, parts=parts), winners != broken
    assert 0 < int(others.sum()) < 12
    expected = WinnerTakesAll(selector=selector, parts=finite)(x)
    for y in (module(x), module.eval()(x.detach())):
        assert torch.equal(y[others], expected[others])
        assert not y[~others].isfinite().any()
    module(x[others]).square().sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in module.parameters())
    assert selector.weight.grad.any()


def test_losers_are_not_trained(selector, linears, rows) -> None:
    parts, x = linears(E), rows(1)
    WinnerTakesAll(selector=selector, parts=parts)(x).square().sum().backward()
    winner = int(selector(x).argmax())
    trained = [p.weight.grad is not None and bool(p.weight.grad.any()) for p in parts]
    assert trained == [i == winner for i in range(E)]


def test_the_selector_counts_the_parts(linears) -> None:
    with pytest.raises(ValueError, match="4 experts take 4 logits, found a selector that gives 3"):
        WinnerTakesAll(selector=linears(1, D, 3)[0], parts=linears(E))
