"""Noise in sums: as much as the theorem asks, sums that compose, and nothing that a seed gives."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from redhost_author.training.packaging import statistics_card
from redhost_author.training.private_sums import (
    COUNTS,
    fresh_generator,
    gaussian_scale,
    private_sums,
)

from redhost.core.routers.domain_statistics import Statistics, within_covariance
from redhost.registry.package.manifest import Noise

WIDTH = 16
CLIP = math.sqrt(WIDTH)


def rows(count: int, *, seed: int = 0) -> tuple[torch.Tensor, list[str]]:
    generator = torch.Generator().manual_seed(seed)
    labels = ["ab"[n % 2] for n in range(count)]
    z = torch.randn(count, WIDTH, generator=generator)
    z[:, 0] += torch.tensor([3.0 if y == "a" else -3.0 for y in labels])
    return torch.nn.functional.layer_norm(z, (WIDTH,)), labels


def noisy(count: int, epsilon: float, *, seed: int = 0, **given) -> Statistics:
    z, labels = rows(count)
    noise = Noise(epsilon=epsilon, delta=1e-5, clip=CLIP)
    generator = np.random.default_rng(seed)
    return private_sums(z, labels, noise, public=None, generator=generator, **given)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-5), (3.0, 1e-6), (5.0, 0.01)])
def test_the_scale_is_the_least_that_the_theorem_allows(epsilon, delta) -> None:
    phi = NormalDist().cdf

    def leak(sigma: float) -> float:
        a, b = 1 / (2 * sigma), epsilon * sigma
        return phi(a - b) - math.exp(epsilon) * phi(-a - b)

    sigma = gaussian_scale(epsilon, delta)
    assert leak(sigma) == pytest.approx(delta, rel=1e-4)
    assert leak(0.999 * sigma) > delta > leak(1.001 * sigma)


def test_the_scale_is_the_papers() -> None:
    assert gaussian_scale(1.0, 1e-5) == pytest.approx(3.7306, abs=1e-4)
    classical = math.sqrt(2 * math.log(1.25 / 1e-5))  # Dwork and Roth 2014, theorem 3.22, at ε = 1
    assert gaussian_scale(1.0, 1e-5) < classical


def test_counts_have_the_noise_of_their_share_of_the_budget() -> None:
    draws = torch.stack([noisy(2000, 1.0, seed=n).counts for n in range(200)])
    assert float(draws.mean()) == pytest.approx(1000, abs=4)
    expected = gaussian_scale(1.0, 1e-5) / math.sqrt(COUNTS)
    assert float(draws.std()) == pytest.approx(expected, rel=0.1)


def test_what_a_row_is_longer_than_c_is_cut() -> None:
    z, labels = rows(100)
    noise = Noise(epsilon=100.0, delta=0.5, clip=CLIP)

    def sums(rows: torch.Tensor) -> torch.Tensor:
        generator = np.random.default_rng(0)
        return private_sums(rows, labels, noise, public=None, generator=generator).sums

    longer = z.clone()
    longer[0] *= 1000
    torch.testing.assert_close(sums(longer), sums(z), atol=1e-3, rtol=0)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("count", [10, 1000])
def test_sums_with_any_noise_have_a_covariance_and_belong_to_vectors(count, epsilon) -> None:
    found = noisy(count, epsilon)
    assert bool((found.counts >= 1).all()) and bool((found.counts == found.counts.round()).all())
    assert float(torch.linalg.vector_norm(found.means, dim=-1).max()) <= CLIP + 1e-6
    assert float(torch.linalg.eigvalsh(found.scatter).min()) > 0
    assert float(torch.linalg.eigvalsh(within_covariance([found])).min()) > 0


def test_little_noise_leaves_the_means_and_much_leaves_one() -> None:
    z, labels = rows(5000)
    exact = Statistics.of_rows(z, labels).means
    torch.testing.assert_close(noisy(5000, 100.0).means, exact, atol=0.02, rtol=0)
    apart = (noisy(100, 0.01).means[0] - noisy(100, 0.01).means[1]).norm()
    assert float(apart) < 0.5 * float((exact[0] - exact[1]).norm())


def test_the_rest_of_the_trace_lies_as_public_texts_do() -> None:
    z, labels = rows(1000)
    public = rows(400, seed=7)[0] * torch.linspace(0.1, 2.0, WIDTH)
    noise = Noise(epsilon=10.0, delta=1e-5, clip=CLIP)
    found = private_sums(z, labels, noise, public=public, generator=np.random.default_rng(0))
    spread = within_covariance([found]).diagonal()
    assert float(spread[-1]) > 2 * float(spread[1])


def test_nobody_draws_the_same_noise_again() -> None:
    first, second = (fresh_generator().standard_normal(4) for _ in range(2))
    assert not (first == second).any()


def test_a_card_says_its_noise_and_its_bytes_are_never_the_same() -> None:
    z, labels = rows(200)
    noise = Noise(epsilon=1.0, delta=1e-5, clip=CLIP)
    cards = [statistics_card(z, labels, labels=("a", "b"), noise=noise) for _ in range(2)]
    assert {c.noise for c in cards} == {noise} and cards[0].data != cards[1].data
    exact = statistics_card(z, labels, labels=("a", "b"))
    assert not exact.noise
