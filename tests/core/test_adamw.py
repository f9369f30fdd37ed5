"""AdamW: the weights of torch's own, bit for bit, at every step and from a state put back."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from redhost.core.adamw import AdamW, cosine_rates


def make_module() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 5), nn.GELU(), nn.Linear(5, 3), nn.LayerNorm(3))


def set_gradients(module: nn.Module, step: int) -> None:
    module.zero_grad()
    x = torch.randn(11, 7, generator=torch.Generator().manual_seed(step))
    module(x).square().sum().backward()


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()])


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.98)])
def test_every_bit_is_that_of_torchs_own(decay: float, betas: tuple[float, float]) -> None:
    mine, torchs = make_module(), make_module()
    ours = AdamW(mine.parameters(), weight_decay=decay, betas=betas)
    theirs = torch.optim.AdamW(torchs.parameters(), lr=0.02, weight_decay=decay, betas=betas)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(theirs, T_max=40)
    start = weights(mine)
    for step, rate in enumerate(cosine_rates(0.02, 40)):
        assert rate == theirs.param_groups[0]["lr"]
        set_gradients(mine, step)
        set_gradients(torchs, step)
        ours.step(rate)
        theirs.step()
        schedule.step()
        assert torch.equal(weights(mine), weights(torchs)), step
    assert (weights(mine) - start).abs().max() > 0.1


def test_what_has_no_gradient_stays() -> None:
    module = make_module()
    optimizer, before = AdamW(module.parameters(), weight_decay=0.5), weights(module)
    set_gradients(module, 0)
    optimizer.zero_grad()
    assert all(p.grad is None for p in module.parameters())
    optimizer.step(0.1)
    assert torch.equal(weights(module), before) and not optimizer.state


def test_a_state_that_is_put_back_goes_on_to_the_same_bits() -> None:
    module = make_module()
    optimizer = AdamW(module.parameters(), weight_decay=0.1)
    for step in range(3):
        set_gradients(module, step)
        optimizer.step(0.01)
    other = copy.deepcopy(module)
    again = AdamW(other.parameters(), weight_decay=0.1)
    for p, q in zip(module.parameters(), other.parameters(), strict=True):
        again.state[q] = {k: v.clone() for k, v in optimizer.state[p].items()}
    for one, its in ((module, optimizer), (other, again)):
        set_gradients(one, 3)
        its.step(0.01)
    assert torch.equal(weights(module), weights(other))
    assert torch.equal(optimizer.state[next(iter(module.parameters()))]["step"], torch.tensor(4.0))


def test_the_rates_fall_from_the_peak_to_nearly_nothing() -> None:
    rates = [*cosine_rates(0.5, 100)]
    assert rates[0] == 0.5 and len(rates) == 100 and rates == sorted(rates, reverse=True)
    assert rates[50] == pytest.approx(0.25) and 0 < rates[-1] < 1e-3
    assert [*cosine_rates(0.5, 0)] == []


def test_an_empty_state_is_none() -> None:
    """As a checkpoint has it of what had not moved."""
    module, other = make_module(), make_module()
    optimizers = [AdamW(m.parameters(), weight_decay=0.1) for m in (module, other)]
    optimizers[1].state = {p: {} for p in other.parameters()}
    for one, optimizer in zip((module, other), optimizers, strict=True):
        set_gradients(one, 0)
        optimizer.step(0.01)
    assert torch.equal(weights(module), weights(other))
