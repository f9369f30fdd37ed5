"""Sparse mixture of experts: the dense mixture, computed where it is not zero."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from redhost_mechanisms.linear import seeded_linear
from redhost_mechanisms.mixture import SparseMixture
from torch import Tensor, nn

D, E = 8, 5


def dense_reference(gate: nn.Module, experts: list[nn.Linear], x: Tensor, *, k: int) -> Tensor:
    """Softmax over the top k alone, the others masked out; at k = 1 the softmax over all."""
    logits = gate(x)
    p = logits.softmax(-1)
    largest = torch.zeros_like(p).scatter(-1, logits.topk(k, -1).indices, 1.0).bool()
    weights = logits.masked_fill(~largest, -torch.inf).softmax(-1) if k > 1 else p * largest
    return (weights[..., None] * torch.stack([e(x) for e in experts], -2)).sum(-2)


def renormalised_at_1(gate: nn.Module, experts: list[nn.Linear], x: Tensor) -> Tensor:
    """The seed's: w / Σ w over a single w is 1, for rows of two dimensions only."""
    p, index = gate(x).softmax(-1).topk(1, dim=-1)
    weight, y = p / p.sum(-1, keepdim=True), torch.zeros_like(x)
    for i, expert in enumerate(experts):
        mask = index[:, 0] == i
        y[mask] += weight[:, 0][mask].unsqueeze(-1) * expert(x[mask])
    return y


def mixture(linears, *, k: int, seed: int = 1, **options) -> SparseMixture:
    gate = gate_of(linears, seed=seed)
    return SparseMixture(gate=gate, experts=linears(E, seed=seed), k=k, **options)


def gate_of(linears, *, seed: int = 1) -> nn.Linear:
    return linears(1, D, E, seed=seed + 100)[0]


def test_the_gate_learns_at_k_1(linears, rows) -> None:
    gate, experts, x = gate_of(linears), linears(E), rows(6)
    renormalised_at_1(gate, experts, x).square().sum().backward()
    assert gate.weight.grad.abs().max() < 1e-4  # the rounding of w / w
    gate.zero_grad()
    SparseMixture(gate=gate, experts=experts, k=1)(x).square().sum().backward()
    assert gate.weight.grad.abs().max() > 1e-2


def test_more_than_two_dimensions(linears, rows) -> None:
    module, x = mixture(linears, k=1), rows(2, 3)
    with pytest.raises((IndexError, RuntimeError)):
        renormalised_at_1(module.gate, [*module.experts], x)
    torch.testing.assert_close(module(x).reshape(6, D), module(x.reshape(6, D)))


@settings(deadline=None, max_examples=25, derandomize=True)
@given(st.integers(1, E), st.integers(0, 7), st.integers(0, 100))
def test_equals_the_dense_reference(linears, rows, k: int, n: int, seed: int) -> None:
    module, x = mixture(linears, k=k, seed=seed), rows(n, seed=seed)
    torch.testing.assert_close(module(x), dense_reference(module.gate, module.experts, x, k=k))


@pytest.mark.parametrize("renormalise", [None, False, True])
def test_all_experts_are_the_softmax_mix(linears, rows, renormalise: bool | None) -> None:
    module, x = mixture(linears, k=E, renormalise=renormalise), rows(6)
    answers = torch.stack([e(x) for e in module.experts], -2)
    torch.testing.assert_close(module(x), (module.gate(x).softmax(-1)[..., None] * answers).sum(-2))


@settings(deadline=None, max_examples=20, derandomize=True)
@given(st.permutations(range(E)), st.integers(1, E))
def test_permuting_the_experts_changes_nothing(linears, rows, options: list[int], k: int) -> None:
    module, x = mixture(linears, k=k), rows(6)
    gate, moved = gate_of(linears), gate_of(linears)
    with torch.no_grad():
        moved.weight.copy_(gate.weight[options])
        moved.bias.copy_(gate.bias[options])
    shuffled = SparseMixture(gate=moved, experts=[module.experts[i] for i in options], k=k)
    torch.testing.assert_close(shuffled(x), module(x))
    weights = shuffled.route(x).dense_weights()
    torch.testing.assert_close(weights, module.route(x).dense_weights()[:, options])


@pytest.mark.parametrize("k", [1, 2, E])
def test_only_chosen_experts_run_and_each_once(linears, rows, k: int) -> None:
    module, calls = mixture(linears, k=k), {}
    for i, expert in enumerate(module.experts):
        expert.register_forward_hook(
            lambda _m, a, _o, i=i: calls.setdefault(i, []).append(len(a[0]))
        )
    x = rows(3)
    module(x)
    assert all(len(c) == 1 for c in calls.values())
    assert sum(c[0] for c in calls.values()) == 3 * k
    assert set(calls) == set(module.route(x).indices.flatten().tolist())


def test_route_and_combine_are_forward(linears, rows) -> None:
    module, x = mixture(linears, k=2), rows(2, 3)
    assert torch.equal(module.combine(x, module.route(x)), module(x))


def test_noise_in_training_only(linears, rows) -> None:
    g = torch.Generator().manual_seed(0)
    module, x = mixture(linears, k=2, noise=1.0, generator=g), rows(6)
    assert not torch.equal(module(x), module(x))
    module.eval()
    assert torch.equal(module(x), module(x))
    assert torch.equal(module(x), mixture(linears, k=2)(x))


def test_learned_noise_learns(linears, rows) -> None:
    g = torch.Generator().manual_seed(0)
    noise = seeded_linear(D, E, generator=g)
    module = mixture(linears, k=2, noise=noise, generator=g)
    module(rows(6)).square().sum().backward()
    assert noise.weight.grad.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "between 1 and 5"),
        ({"k": 1, "renormalise": True}, "the gate learns nothing"),
        ({"k": 2, "noise": 0.1}, "generator, found none"),
        ({"k": 2, "noise": nn.Linear(D, 3)}, "found a noise that gives 3"),
    ],
)
def test_impossible_options_raise(linears, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mixture(linears, **options)
