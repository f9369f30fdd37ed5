"""The numbers of the generative study on tables made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from red_lab.generative import ratio, recovered, regrets
from red_lab.generative.judge import (
    GateRows,
    bayes_gate,
    bits_of,
    mixture_bits,
    passage_divergence,
    passage_posterior,
    token_divergence,
)
from red_lab.intervals import over_seeds
from redhost_robust import Sequences, constant_causal_gate

PATHS = Sequences(symbols=2, steps=4)
EXPERTS = np.random.default_rng(0).dirichlet(np.ones(16), size=3)
"""Three laws over all sequences of four bits."""
WEIGHTS = np.array([0.5, 0.3, 0.2])


def passages() -> list[torch.Tensor]:
    """log π_k(x_t|x_<t) of every sequence, ``(T, K)`` each."""
    log_p = torch.from_numpy(np.log(PATHS.conditionals(EXPERTS)))  # (K, T, X)
    return [log_p[:, :, n].T for n in range(log_p.shape[2])]


def test_the_teacher_is_bayes_over_whole_passages() -> None:
    weights = torch.from_numpy(WEIGHTS)
    joint = WEIGHTS[:, None] * EXPERTS
    for n, posterior in enumerate(passage_posterior(passages(), weights)):
        expected = torch.from_numpy(joint[:, n] / joint[:, n].sum())
        assert torch.allclose(posterior.exp(), expected.expand(4, -1))


def test_bayes_is_the_closed_form_of_a_constant_gate() -> None:
    found = torch.stack(bayes_gate(passages(), torch.from_numpy(WEIGHTS)), dim=1).exp()
    expected = constant_causal_gate(WEIGHTS, EXPERTS, PATHS)  # (T, X, K)
    assert torch.allclose(found, torch.from_numpy(expected))


def test_the_mixture_of_bayes_is_the_mixture_of_passages() -> None:
    log_p = passages()
    for n, (rows, gate) in enumerate(
        zip(log_p, bayes_gate(log_p, torch.from_numpy(WEIGHTS)), strict=True)
    ):
        total = torch.logsumexp(rows + gate, dim=1).sum()
        assert float(total) == pytest.approx(math.log(WEIGHTS @ EXPERTS[:, n]))


def test_the_first_token_has_seen_nothing() -> None:
    rows = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    other = rows.clone()
    other[3, 0] += 2.0
    weights = torch.tensor([0.2, 0.3, 0.5])
    one, two = bayes_gate([rows], weights)[0], bayes_gate([other], weights)[0]
    assert torch.allclose(one[0].exp(), weights)
    assert torch.equal(one[:4], two[:4]) and not torch.equal(one[4], two[4])


def test_regrets_and_recovered_shares() -> None:
    base, own, bits = [4.0, 3.0, 2.0], [2.0, 2.0, 2.0], [2.2, 3.0, 1.9]
    assert regrets(bits, own) == pytest.approx([0.2, 1.0, -0.1])
    assert recovered(bits, base=base, own=own)[:2] == pytest.approx([0.9, 0.0])
    assert recovered(bits, base=base, own=own)[2] is None  # no gain to recover


def test_a_ratio_of_regrets() -> None:
    assert ratio(0.1, 0.4) == pytest.approx(0.25)
    assert ratio(-0.1, 0.4) == 0.0  # no regret is as little as there can be
    assert ratio(-0.2, -0.1) == 0.0
    assert ratio(0.1, -0.1) is None


def test_bits_per_byte_of_a_mixture() -> None:
    log_p = torch.tensor([[0.5, 0.25], [0.125, 0.5]]).log()
    rows = GateRows(x=torch.zeros(2, 1), log_p=log_p, lengths=(2,), scale=1 / math.log(2))
    first = torch.tensor([[1.0, 0.0]]).expand(2, -1).log()
    assert mixture_bits(first, rows) == pytest.approx(2.0)  # (1 + 3) / 2
    assert bits_of(log_p[:, 1], rows.scale) == pytest.approx(1.5)
    own = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).log()
    assert mixture_bits(own, rows) == pytest.approx(1.0)


def test_divergence_of_passages_ends_at_log_k() -> None:
    apart = [torch.full((4, 3), -1000.0) for _ in range(3)]
    for k, rows in enumerate(apart):
        rows[:, k] = -1.0
    assert passage_divergence(apart) == pytest.approx(math.log(3))
    assert passage_divergence([torch.zeros(4, 3)] * 3) == pytest.approx(0, abs=1e-6)


def test_divergence_of_tokens() -> None:
    same = torch.log_softmax(torch.arange(35.0).reshape(5, 1, 7).sin(), dim=-1).expand(-1, 3, -1)
    assert torch.allclose(token_divergence(same), torch.zeros(5), atol=1e-6)
    p = torch.tensor([[[0.9, 0.1], [0.1, 0.9]]])
    expected = math.log(2) + 0.9 * math.log(0.9) + 0.1 * math.log(0.1)
    assert float(token_divergence(p.log())) == pytest.approx(expected)


def test_one_seed_has_no_interval() -> None:
    assert over_seeds([2.0]) == {"mean": 2.0, "low": 2.0, "high": 2.0}
