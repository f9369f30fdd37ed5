"""Adaptive graft: a projection if one is needed."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.adaptive_graft import AdaptiveGraft
from torch import Tensor, nn

D = 8


class SeedsGraft(nn.Module):
    """The seed's: an unknown mode is noticed in the first forward."""

    def __init__(self, taken: int, given: int, mode: str) -> None:
        super().__init__()
        if taken != given:
            if mode == "linear":
                self.projection = nn.Linear(taken, given)
        else:
            self.projection = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.projection(x)


def graft(taken: int, given: int, *, mode: str = "linear", seed: int = 0) -> AdaptiveGraft:
    g = torch.Generator().manual_seed(seed)
    return AdaptiveGraft(input_width=taken, output_width=given, mode=mode, generator=g)


def test_an_unknown_mode_raises_at_once(rows) -> None:
    late = SeedsGraft(D, 5, "lienar")
    with pytest.raises(AttributeError, match="projection"):
        late(rows(2))
    for width in (D, 5):
        with pytest.raises(ValueError, match=r"unknown mode 'lienar'\. Did you mean 'linear'"):
            graft(D, width, mode="lienar")


@pytest.mark.parametrize("mode", ["linear", "mlp"])
def test_equal_widths_are_the_identity(rows, mode: str) -> None:
    x, module = rows(2, 3), graft(D, D, mode=mode)
    assert module(x) is x
    assert not [*module.parameters()]


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from(["linear", "mlp"]))
def test_any_two_widths(rows, taken: int, given: int, mode: str) -> None:
    module = graft(taken, given, mode=mode)
    assert module(rows(4, width=taken)).shape == (4, given)
    same = graft(taken, given, mode=mode)
    assert torch.equal(module(rows(4, width=taken)), same(rows(4, width=taken)))


def test_an_mlp_is_not_linear(rows) -> None:
    x = rows(4)

    def bend(module: nn.Module) -> float:
        return (module(x) + module(-x) - 2 * module(torch.zeros_like(x))).abs().max().item()

    assert bend(graft(D, 5)) < 1e-5 < bend(graft(D, 5, mode="mlp"))
