"""Independent ensemble: three ways to put answers together."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.ensemble import IndependentEnsemble
from torch import Tensor, nn

D = 8


class SeedsEnsemble(nn.Module):
    def __init__(self, *, parts: list[nn.Linear], combiner: str) -> None:
        super().__init__()
        self.parts, self.combiner = nn.ModuleList(parts), combiner

    def forward(self, x: Tensor) -> Tensor | None:
        outputs = [part(x) for part in self.parts]
        return torch.stack(outputs).mean(0) if self.combiner == "mean" else None


def test_an_unknown_combiner_raises(linears, rows) -> None:
    parts = linears(2)
    assert SeedsEnsemble(parts=parts, combiner="maen")(rows(2)) is None
    with pytest.raises(ValueError, match=r"unknown combiner 'maen'\. Did you mean 'mean'"):
        IndependentEnsemble(parts=parts, combiner="maen")


@settings(deadline=None, max_examples=15, derandomize=True)
@given(st.integers(1, 5))
def test_the_mean_of_copies_is_the_copy(linears, rows, count: int) -> None:
    (part,), x = linears(1), rows(2, 3)
    torch.testing.assert_close(IndependentEnsemble(parts=[part] * count)(x), part(x))
    total = IndependentEnsemble(parts=[part] * count, combiner="sum")
    torch.testing.assert_close(total(x), count * part(x))


@settings(deadline=None, max_examples=15, derandomize=True)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_concat_takes_parts_of_any_output_width(linears, rows, widths: list[int]) -> None:
    parts, x = [linears(1, D, w)[0] for w in widths], rows(4)
    module = IndependentEnsemble(parts=parts, combiner="concat")
    assert module.output_width == sum(widths)
    assert torch.equal(module(x), torch.cat([p(x) for p in parts], -1))


def test_sums_need_one_width(linears) -> None:
    parts = [*linears(1), *linears(1, D, 5)]
    with pytest.raises(ValueError, match="part 1 gives width 5, part 0 gives width 8"):
        IndependentEnsemble(parts=parts, combiner="sum")
    with pytest.raises(ValueError, match="none of its 0 parts"):
        IndependentEnsemble(parts=[])
