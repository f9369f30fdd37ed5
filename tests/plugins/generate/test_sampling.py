"""Sampling: what transformers keeps is what may be drawn, and penalties are its formulas."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from redhost_generate import Sampling
from redhost_generate.sampling import Sampler, limited
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from redhost.registry.errors import UsageError

WORDS = 50


def distribution(seed: int) -> torch.Tensor:
    """Return p of a vocabulary, without ties."""
    return torch.randn(WORDS, generator=torch.Generator().manual_seed(seed)).mul(2).softmax(0)


def drawn(p: torch.Tensor, count: int = 4000, **options: Any) -> torch.Tensor:
    """Return how often each token is the first of a text, ``(V,)``."""
    temperature = options.pop("temperature", 1.0)
    counts = torch.zeros(len(p))
    for seed in range(count):
        sampler = Sampler((), temperature=temperature, seed=seed, sampling=Sampling(**options))
        counts[sampler.draw(p)] += 1
    return counts / count


@pytest.mark.parametrize("heat", [1.0, 2.0, 0.5])
def test_tokens_are_drawn_as_often_as_they_are_probable(heat) -> None:
    sampler = Sampler((), temperature=heat, seed=0, sampling=Sampling())
    p = torch.tensor([0.0, 0.5, 0.1, 0.0, 0.4, 0.0])
    counts = torch.zeros(6)
    for _ in range(4000):
        counts[sampler.draw(p)] += 1
    want = p ** (1 / heat) / (p ** (1 / heat)).sum()
    assert torch.equal(counts > 0, p > 0)
    assert torch.allclose(counts / 4000, want, atol=0.03)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("options", "warpers"),
    [
        ({"top_k": 7}, [TopKLogitsWarper(7)]),
        ({"top_p": 0.8}, [TopPLogitsWarper(0.8)]),
        ({"min_p": 0.1}, [MinPLogitsWarper(0.1)]),
        ({"top_k": 9, "top_p": 0.7}, [TopKLogitsWarper(9), TopPLogitsWarper(0.7)]),
        ({"min_p": 0.02, "top_p": 0.9}, [MinPLogitsWarper(0.02), TopPLogitsWarper(0.9)]),
        ({"top_k": 1}, [TopKLogitsWarper(1)]),
        ({"top_p": 1e-6}, [TopPLogitsWarper(1e-6)]),
    ],
)
def test_what_may_be_drawn_is_what_transformers_keeps(options, warpers, seed) -> None:
    p = distribution(seed)
    want = LogitsProcessorList(warpers)(torch.zeros(1, 1).long(), p.log()[None])[0].softmax(0)
    found = limited(p, Sampling(**options))
    assert torch.equal(found > 0, want > 0)
    assert torch.allclose(found / found.sum(), want, atol=1e-6)


def test_limits_are_set_after_the_temperature() -> None:
    p = distribution(0)
    cold = TemperatureLogitsWarper(0.5)(torch.zeros(1, 1).long(), p.log()[None])
    want = TopPLogitsWarper(0.8)(torch.zeros(1, 1).long(), cold)[0].softmax(0)
    found = drawn(p, temperature=0.5, top_p=0.8)
    assert torch.equal(found > 0, want > 0)
    assert torch.allclose(found, want, atol=0.03)


def test_of_equal_tokens_the_first_may_be_drawn() -> None:
    weights = limited(torch.full((6,), 1 / 6), Sampling(top_k=2))
    assert weights.nonzero().flatten().tolist() == [0, 1]


@pytest.mark.parametrize("penalty", [1.3, 0.8])
def test_a_repetition_penalty_is_that_of_transformers_on_log_p(penalty) -> None:
    p = distribution(1)
    prompt = [3, 4, 4, int(p.argmax())]
    process = RepetitionPenaltyLogitsProcessor(penalty)
    want = process(torch.tensor([prompt]), p.log()[None])[0].softmax(0)
    sampling = Sampling(repetition_penalty=penalty)
    counts = torch.zeros(WORDS)
    for seed in range(4000):
        counts[Sampler(prompt, temperature=1, seed=seed, sampling=sampling).draw(p)] += 1
    assert torch.allclose(counts / 4000, want, atol=0.03)
    assert not torch.allclose(p, want, atol=0.03)  # else the draws would show nothing


def test_presence_and_frequency_are_counted_in_the_text_and_not_in_the_prompt() -> None:
    p = torch.tensor([0.5, 0.3, 0.2])
    sampling = Sampling(presence_penalty=0.2, frequency_penalty=0.4)
    sampler = Sampler([0, 0, 0, 1], temperature=0, seed=0, sampling=sampling)
    text, counts = [], torch.zeros(3)
    for _ in range(12):
        want = p.log() - 0.2 * (counts > 0) - 0.4 * counts
        token = sampler.draw(p)
        assert token == int(want.argmax())
        counts[token] += 1
        text.append(token)
    assert {*text} == {0, 1, 2}


def test_what_is_impossible_stays_so() -> None:
    p = torch.tensor([0.0, 0.9, 0.1])
    sampling = Sampling(repetition_penalty=0.5, presence_penalty=-2, frequency_penalty=-2)
    sampler = Sampler([0], temperature=1, seed=0, sampling=sampling)
    assert 0 not in [sampler.draw(p) for _ in range(200)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("min_p", -0.1),
        ("min_p", float("nan")),
        ("repetition_penalty", 0.0),
        ("presence_penalty", 2.5),
        ("frequency_penalty", -3.0),
    ],
)
def test_what_is_out_of_range_is_refused(name, value) -> None:
    with pytest.raises(UsageError):
        Sampling(**{name: value})
