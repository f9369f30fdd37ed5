"""Additive composition: a sum, whose order is no matter."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.additive import Additive
from redhost_mechanisms.linear import zero_linear
from torch import Tensor, nn

D = 8


class Sequentially(nn.Module):
    """The alternative in the seed's comment: each part reads what the ones before it made."""

    def __init__(self, *, base: nn.Module, parts: list[nn.Linear]) -> None:
        super().__init__()
        self.base, self.parts = base, nn.ModuleList(parts)

    def forward(self, x: Tensor) -> Tensor:
        y = self.base(x)
        for part in self.parts:
            y = y + part(y)
        return y


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.permutations(range(4)))
def test_order_free(linears, rows, options: list[int]) -> None:
    parts, x = linears(4), rows(3)
    shuffled = [parts[i] for i in options]

    def moves(kind: type[Additive] | type[Sequentially]) -> bool:
        one, two = (kind(base=nn.Identity(), parts=p) for p in (parts, shuffled))
        return not torch.allclose(one(x), two(x), atol=1e-5)

    assert not moves(Additive)
    assert moves(Sequentially) == (options != sorted(options))


def test_equals_base_plus_sum(linears, rows) -> None:
    base, one, two = linears(3, D, 5)
    x = rows(2, 3)
    ours = Additive(base=base, parts=[one, two])
    torch.testing.assert_close(ours(x), base(x) + one(x) + two(x))


def test_parts_of_zero_give_the_base_bit_for_bit(linears, rows) -> None:
    (base,) = linears(1)
    x = rows(3)
    assert torch.equal(Additive(base=base)(x), base(x))
    assert torch.equal(Additive(base=base, parts=[zero_linear(D, D)] * 2)(x), base(x))


def test_one_width_for_all(linears) -> None:
    parts = [*linears(1), *linears(1, D, 5)]
    with pytest.raises(ValueError, match="part 1 gives width 5, base gives width 8"):
        Additive(base=nn.Identity(), parts=parts)
