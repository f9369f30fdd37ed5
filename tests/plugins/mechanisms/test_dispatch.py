"""Dispatch: one call for each chosen expert, answers in order."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms import dispatch
from torch import Tensor, nn


class Counting(nn.Module):
    """Adds its own number, and counts the rows of each call."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number, self.calls = number, []

    def forward(self, x: Tensor) -> Tensor:
        self.calls.append(len(x))
        return x + self.number


@settings(deadline=None, max_examples=40, derandomize=True)
@given(st.data())
def test_each_row_meets_its_experts(data: st.DataObject) -> None:
    count, k, n = (data.draw(st.integers(*r)) for r in ((1, 5), (1, 3), (0, 6)))
    index = st.lists(st.integers(0, count - 1), min_size=n * k, max_size=n * k)
    indices = torch.tensor(data.draw(index), dtype=torch.int64).reshape(n, k)
    experts = [Counting(i) for i in range(count)]
    rows = torch.arange(n * 2.0).reshape(n, 2)
    out = dispatch(nn.ModuleList(experts), rows, indices, output_width=2)
    assert torch.equal(out, rows[:, None] + indices[..., None])
    for i, expert in enumerate(experts):
        expected = int((indices == i).sum())
        assert expert.calls == [expected] * bool(expected)
