"""Output graft: four modes, none of which disturbs the host at α = 0."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.output_graft import OutputGraft
from torch import Tensor

D = 8
SAME_WIDTH = ["add", "replace", "gate"]


def seeds_inject(host: Tensor, part: Tensor, *, mode: str, alpha: float) -> Tensor | None:
    if mode == "add":
        return host + alpha * part
    if mode == "gate":
        return host * torch.sigmoid(part)
    return None


def graft(mode: str, **options) -> OutputGraft:
    return OutputGraft(target="layer", width=D, mode=mode, **options)


def test_an_unknown_mode_raises(rows) -> None:
    assert seeds_inject(rows(2), rows(2), mode="ad", alpha=1.0) is None
    with pytest.raises(
        ValueError, match=r"unknown mode 'ad'\. Did you mean 'add'\? Known: add, rep"
    ):
        graft("ad")


def test_the_gate_is_the_identity_at_init(rows) -> None:
    host, zero = rows(4), torch.zeros(4, D)
    torch.testing.assert_close(seeds_inject(host, zero, mode="gate", alpha=1.0), host / 2)
    assert torch.equal(graft("gate")(host, rows(4, seed=1)), host)
    assert torch.equal(graft("gate", alpha=1.0)(host, zero), host)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.sampled_from(SAME_WIDTH), st.booleans(), st.lists(st.integers(0, 3), max_size=2))
def test_alpha_0_is_bit_equal(rows, mode: str, learnable: bool, leading: list[int]) -> None:
    host, part = rows(*leading), 1e3 * rows(*leading, seed=1)
    assert torch.equal(graft(mode, learnable=learnable)(host, part), host)


def test_concat_at_alpha_0_appends_zeros(rows) -> None:
    host, part = rows(4), rows(4, width=5)
    module = graft("concat", part_width=5)
    assert module.output_width == D + 5
    assert torch.equal(module(host, part), torch.cat([host, torch.zeros(4, 5)], -1))


def test_what_the_modes_do_at_alpha_1(rows) -> None:
    host, part = rows(4), rows(4, seed=1)
    assert torch.equal(graft("add", alpha=1.0)(host, part), host + part)
    assert torch.equal(graft("replace", alpha=1.0)(host, part), part)
    assert torch.equal(graft("concat", alpha=1.0)(host, part), torch.cat([host, part], -1))
    gate = (2 * torch.sigmoid(part)).clamp(max=1)
    torch.testing.assert_close(graft("gate", alpha=1.0)(host, part), host * gate)


@pytest.mark.parametrize("mode", [*SAME_WIDTH, "concat"])
def test_alpha_learns_from_0(rows, mode: str) -> None:
    module = graft(mode)
    module(rows(4), rows(4, seed=1)).square().sum().backward()
    if mode == "concat":  # A square is flat at 0: ask for a sum there.
        module(rows(4), rows(4, seed=1)).sum().backward()
    assert module.alpha.grad != 0
    assert not [*graft(mode, learnable=False).parameters()]


def test_another_width_is_refused(rows) -> None:
    with pytest.raises(ValueError, match="takes a part of width 8, found 5; project it"):
        graft("add", part_width=5)
    with pytest.raises(ValueError, match="at layer 'layer' takes width 8, found width 5"):
        graft("add")(rows(2, width=5), rows(2))
    with pytest.raises(ValueError, match="its part takes width 8, found width 5"):
        graft("add")(rows(2), rows(2, width=5))
