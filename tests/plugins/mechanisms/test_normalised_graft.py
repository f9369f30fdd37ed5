"""Normalised graft: two norms of two widths, and a scale that does not follow the host's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.encapsulated import Encapsulated
from redhost_mechanisms.normalised_graft import NormalisedGraft
from torch import Tensor, nn

D = 16


class OneWidth(nn.Module):
    """The seed's: both norms have the width of the input."""

    def __init__(self, part: nn.Module, width: int) -> None:
        super().__init__()
        self.pre, self.part, self.post = nn.LayerNorm(width), part, nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        return self.post(self.part(self.pre(x)))


def test_different_widths(linears, rows) -> None:
    (part,), x = linears(1, D, 5), rows(4, width=D)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        OneWidth(part, D)(x)
    assert NormalisedGraft(part=part, post_norm=True)(x).shape == (4, 5)


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.booleans(), st.floats(1, 1e4), st.integers(0, 100))
def test_scale_is_bounded(linears, rows, pre_norm: bool, scale: float, seed: int) -> None:
    (part,), x = linears(1, D, D), rows(4, width=D, seed=seed)
    module = NormalisedGraft(part=part, pre_norm=pre_norm, post_norm=not pre_norm)
    assert module(scale * x).norm() < 1.5 * module(x).norm()
    assert part(100 * x).norm() > 10 * part(x).norm()


def test_where_the_norms_stand(linears, rows) -> None:
    (part,), x = linears(1, D, 5), rows(4, width=D)
    pre = nn.functional.layer_norm(x, (D,))
    torch.testing.assert_close(NormalisedGraft(part=part)(x), part(pre))
    both = NormalisedGraft(part=part, post_norm=True)(x)
    torch.testing.assert_close(both, nn.functional.layer_norm(part(pre), (5,)))


def test_norms_have_a_width_and_a_place(linears) -> None:
    with pytest.raises(ValueError, match="before or after the part, found neither"):
        NormalisedGraft(part=linears(1)[0], pre_norm=False)
    with pytest.raises(ValueError, match="GELU keeps any width and a norm has one"):
        NormalisedGraft(part=nn.GELU())
    part = Encapsulated(nn.GELU(), input_width=D, output_width=D)
    assert NormalisedGraft(part=part).output_width == D
