"""The causal memory: its closed form, what a later token cannot touch, who reads it."""

from __future__ import annotations

import pytest
import torch
from redhost_generate import tokens as context
from redhost_generate.tokens import (
    HORIZONS,
    RunningContext,
    context_layout,
    contexts,
    update_context,
)

D = 16


@pytest.fixture
def h() -> torch.Tensor:
    return torch.randn(40, D, generator=torch.Generator().manual_seed(0))


def bus_vectors(h: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(h, (D,), eps=1e-5)


def test_a_context_is_the_mean_of_what_was_with_the_older_forgotten(h) -> None:
    z, running = bus_vectors(h).double(), contexts(h, eps=1e-5)
    assert running.shape == (len(h), len(HORIZONS) * D)
    for n, horizon in enumerate(HORIZONS):
        beta = 1 - 1 / horizon
        for t in (0, 1, 17, len(h) - 1):
            weights = beta ** torch.arange(t, -1, -1, dtype=torch.float64)
            mean = (weights[:, None] * z[: t + 1]).sum(0) / weights.sum()
            assert torch.allclose(running[t, n * D : (n + 1) * D].double(), mean, atol=1e-5)


def test_the_first_context_is_the_first_bus_vector(h) -> None:
    first = contexts(h[:1], eps=1e-5)
    assert torch.equal(first, bus_vectors(h[:1]).repeat(1, len(HORIZONS)))


def test_a_horizon_of_one_token_remembers_nothing(h, monkeypatch) -> None:
    monkeypatch.setattr(context, "HORIZONS", (1,))
    assert torch.equal(contexts(h, eps=1e-5), bus_vectors(h))


def test_steps_and_a_whole_text_give_the_same_bits(h) -> None:
    memory, running = RunningContext.empty(D), []
    for z in bus_vectors(h):
        memory, one = update_context(memory, z)
        running.append(one)
    assert torch.equal(torch.stack(running), contexts(h, eps=1e-5))


def test_a_later_state_changes_no_earlier_context(h) -> None:
    other = h.clone()
    other[20:] = -other[20:]
    one, two = contexts(h, eps=1e-5), contexts(other, eps=1e-5)
    assert torch.equal(one[:20], two[:20])
    assert not torch.isclose(one[20:], two[20:]).all(-1).any()


def test_the_router_reads_it_and_experts_do_not(h) -> None:
    layout = context_layout(D)
    wide = torch.cat([h, contexts(h, eps=1e-5)], dim=-1)
    assert wide.shape[-1] == layout.total_width
    assert torch.equal(layout.router_input(wide), wide)
    assert torch.equal(layout.read(wide, "anyone"), h)
    assert torch.equal(layout.base(wide), h)
    [segment] = layout.segments
    assert (segment.key, segment.normalised) == (f"context {HORIZONS}", False)
