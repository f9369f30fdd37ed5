"""Drift by domain: nothing where texts are like a card's, the distance where they are not."""

from __future__ import annotations

import pytest
import torch
from redhost_serve.drift import drift_from, faded

from redhost.core.routers.domain_statistics import Statistics
from redhost.plugins import ColumnData, Moments


def rows(count: int, shift: float, *, seed: int, width: int = 64) -> torch.Tensor:
    """Return rows whose spread is 1 in all, and whose mean is off by so much."""
    z = torch.randn(count, width, generator=torch.Generator().manual_seed(seed)) / width**0.5
    z[:, 0] += shift
    return z


def moments(z: torch.Tensor) -> Moments:
    statistics = Statistics.of_rows(z, ["a", "b"] * (len(z) // 2))
    return Moments.of_columns([ColumnData(column="x", z=z, statistics=statistics)])


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0])
def test_drift_is_the_distance_in_standard_deviations(shift) -> None:
    found = [
        float(drift_from(moments(rows(n, shift, seed=k)), moments(rows(200, 0.0, seed=1000 + k))))
        for n in (100, 400)
        for k in range(30)
    ]
    assert sum(d**2 for d in found) / len(found) == pytest.approx(shift**2, abs=0.01)


def test_it_is_unbiased_of_few_texts_and_a_small_card() -> None:
    """Means of thirty rows lie .26 apart by chance alone; that is not drift."""
    apart = []
    for seed in range(200):
        card, live = (moments(rows(30, 0.0, seed=2 * seed + k)) for k in (0, 1))
        apart.append(float(drift_from(live, card)))
    assert sorted(apart)[100] < 0.06


def test_sums_of_parts_are_the_sums_of_all_and_old_ones_fade() -> None:
    z, card = rows(400, 0.5, seed=3), moments(rows(200, 0.0, seed=0))
    whole = moments(z)
    parts = moments(z[:100]) + moments(z[100:])
    torch.testing.assert_close(drift_from(parts, card), drift_from(whole, card))
    old = faded(whole, 100)
    assert float(old.rows) == pytest.approx(100)
    later = faded(old + moments(rows(2000, 0.0, seed=5)), 100)
    assert float(drift_from(later, card)) < 0.1


def test_a_file_of_them_keeps_them() -> None:
    card, live = moments(rows(200, 0.0, seed=0)), moments(rows(300, 0.4, seed=1))
    again = Moments.load(card.save())
    torch.testing.assert_close(drift_from(live, again), drift_from(live, card), rtol=0, atol=1e-4)


def test_of_one_text_nothing_is_known() -> None:
    one = rows(2, 0.0, seed=1)[:1]
    statistics = Statistics.of_rows(one, ["a"])
    live = Moments.of_columns([ColumnData(column="x", z=one, statistics=statistics)])
    assert bool(drift_from(live, moments(rows(200, 0.0, seed=0))).isnan())
