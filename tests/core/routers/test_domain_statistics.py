"""Sums of a domain: joining and leaving are exact, and rows that do not belong are far away."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from redhost.core.routers.domain_statistics import Statistics, within_scatter
from redhost.core.routers.quadratic import QuadraticRouter
from redhost.core.routers.statistics import StatisticsRouter
from redhost.core.training.router_data import ColumnData

D = 5
LABELS = ["b", "a", "b", "c", "a", "b", "c", "c", "a", "b", "b", "a"]


def rows(n: int = len(LABELS), *, seed: int = 0, at: float = 0.0) -> Tensor:
    """Return rows whose entries are quarters: sums of them are exact in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-40, 40, (n, D), generator=generator) / 4 + at


def equal(one: Statistics, other: Statistics) -> bool:
    tensors = ((one.counts, other.counts), (one.sums, other.sums), (one.scatter, other.scatter))
    return one.labels == other.labels and all(torch.equal(a, b) for a, b in tensors)


def test_sums_of_rows_are_those_of_the_rows_by_label() -> None:
    z = rows()
    sums = Statistics.of_rows(z, LABELS)
    assert sums.labels == ("a", "b", "c")
    for n, label in enumerate(sums.labels):
        among = z[[i for i, y in enumerate(LABELS) if y == label]].double()
        assert float(sums.counts[n]) == len(among)
        assert torch.equal(sums.sums[n], among.sum(0))
        assert torch.equal(sums.means[n], among.sum(0) / len(among))
    assert torch.equal(sums.scatter, z.double().T @ z.double())


def test_rows_leave_the_sums_exactly_and_every_label_stays() -> None:
    z, leaving = rows(), [1, 4, 8, 11, 3]  # every row of "a", and one of "c"
    staying = [n for n in range(len(z)) if n not in leaving]
    less = Statistics.of_rows(z, LABELS).without(z[leaving], [LABELS[n] for n in leaving])
    expected = Statistics.of_rows(z[staying], [LABELS[n] for n in staying])
    assert less.labels == ("a", "b", "c") and less.counts.tolist() == [0, 5, 2]
    assert torch.equal(less.sums[0], torch.zeros(D, dtype=torch.float64))
    assert torch.equal(less.sums[1:], expected.sums)
    assert torch.equal(less.scatter, expected.scatter)


def test_a_row_that_occurs_twice_counts_twice() -> None:
    z = rows()
    twice = Statistics.of_rows(torch.cat([z, z]), LABELS * 2)
    assert equal(Statistics.of_rows(z, LABELS).times(2.0), twice)


def test_a_part_is_the_sums_of_a_part_of_each_row() -> None:
    z = rows()
    sums = Statistics.of_rows(z, LABELS)
    assert equal(sums.first(2), Statistics.of_rows(z[:, :2], LABELS))


def test_a_union_adds_domains_whose_labels_differ() -> None:
    z, other = rows(), rows(4, seed=1)
    union = Statistics.union([Statistics.of_rows(z, LABELS), Statistics.of_rows(other, [*"xyxy"])])
    assert union.labels == ("a", "b", "c", "x", "y")
    assert equal(union, Statistics.of_rows(torch.cat([z, other]), [*LABELS, *"xyxy"]))


def by_hand(sums: Statistics, z: Tensor, labels: list[str]) -> float:
    """Return the distance of `Statistics.distance`, by the formula of its docstring."""
    means = {y: m.numpy() for y, m in zip(sums.labels, sums.means, strict=True)}
    off = z.double().numpy() - np.stack([means[y] for y in labels])
    totals = {y: off[[n for n, x in enumerate(labels) if x == y]] for y in set(labels)}
    of_labels = sum(float((t.sum(0) ** 2).sum()) / len(t) for t in totals.values()) / len(totals)
    of_all = float((off.sum(0) ** 2).sum()) / len(labels)
    scatter, freedom = within_scatter([sums])
    sigma = scatter.numpy() / freedom
    trace, square = float(np.trace(sigma)), float((sigma**2).sum())
    ratio = max(of_labels, of_all) / trace / (1 + len(labels) / float(sums.counts.sum()))
    return (ratio - 1) * math.sqrt(trace**2 / square / 2)


@pytest.mark.parametrize("at", [0.0, 3.0, 50.0])
@pytest.mark.parametrize("labels", [["a", "b", "c", "b"], ["b"] * 4])
def test_the_distance_of_rows_is_its_formula(at: float, labels: list[str]) -> None:
    sums, z = Statistics.of_rows(rows(), LABELS), rows(4, seed=7, at=at)
    expected = by_hand(sums, z, labels)
    assert sums.distance(z, labels) == pytest.approx(expected, rel=1e-9)
    assert at < 50 or expected > 20


def test_labels_without_a_row_do_not_thin_the_distance() -> None:
    """Two of three labels, moved apart: the sum over labels is the larger of the two terms."""
    sums, labels = Statistics.of_rows(rows(), LABELS), ["a", "c", "a", "c"]
    z = sums.means[[0, 2, 0, 2]] + 30.0 * torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None]
    assert sums.distance(z, labels) == pytest.approx(by_hand(sums, z, labels), rel=1e-9)


def test_rows_under_exchanged_labels_are_far_though_their_mean_is_right() -> None:
    generator = torch.Generator().manual_seed(2)
    noise = torch.randn(400, D, generator=generator)
    labels = ["left", "right"] * 200
    z = noise + 6 * torch.tensor([[-1.0], [1.0]]).repeat(200, 1)
    sums = Statistics.of_rows(z[:300], labels[:300])
    assert sums.distance(z[300:], labels[300:]) < 5
    assert sums.distance(z[300:], labels[299:-1]) > 100


def test_nothing_is_far_from_sums_of_less_than_two_rows_a_label() -> None:
    few = Statistics.of_rows(rows(3), ["a", "b", "b"])
    assert few.distance(rows(2, at=100.0), ["a", "b"]) == 0.0
    enough = Statistics.of_rows(rows(4), ["a", "a", "b", "b"])
    assert enough.distance(rows(2, at=100.0), ["a", "b"]) > 0


def columns() -> list[ColumnData]:
    data = list[ColumnData]()
    for n, name in enumerate(("backbone", "mail", "news")):
        z, labels = rows(60, seed=n, at=2.0 * n), [f"{name} {i % 2}" for i in range(60)]
        sums = Statistics.of_rows(z, labels)
        data.append(ColumnData(column=name, z=z, labels=tuple(labels), statistics=sums))
    return data


@pytest.mark.parametrize("kind", [QuadraticRouter, StatisticsRouter])
def test_the_density_is_that_of_the_experts_alone(kind: type) -> None:
    router = kind(width=D, columns=("backbone", "mail", "news"))
    with torch.no_grad():
        router.solve(columns())
        z = rows(9, seed=5)
        each = router.log_densities(z)
        assert each.shape == (9, 3)
        torch.testing.assert_close(router.log_density(z), torch.logsumexp(each[:, 1:], dim=-1))


def test_the_shared_density_is_that_of_gaussians() -> None:
    """Up to one constant: of label y, log π_y − ½ (z − μ_y)ᵀ Σ⁻¹ (z − μ_y)."""
    data, z = columns(), rows(9, seed=5)
    router = StatisticsRouter(width=D, columns=("backbone", "mail", "news"))
    with torch.no_grad():
        router.solve(data)
        each = router.log_densities(z).double()
        precision = router.precision.double()
        for k, d in enumerate(data):
            off = z.double()[:, None] - d.statistics.means  # (9, Y, D)
            prior = (d.statistics.counts / d.statistics.counts.sum()).log()
            density = prior - 0.5 * torch.einsum("nyi,ij,nyj->ny", off, precision, off)
            torch.testing.assert_close(
                each[:, k], torch.logsumexp(density, -1), rtol=1e-4, atol=1e-3
            )


def test_solving_some_columns_leaves_the_shared_covariance() -> None:
    data = columns()
    router = QuadraticRouter(width=D, columns=("backbone", "mail", "news"))
    router.solve(data)
    before = router.covariance.clone()
    news = dataclasses.replace(
        data[2], statistics=Statistics.of_rows(rows(60, at=9.0), data[2].labels)
    )
    router.solve([*data[:2], news], only=("news",))
    assert torch.equal(router.covariance, before)
