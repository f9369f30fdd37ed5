"""Certificates: the best of both sides, and when to stop."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from redhost_robust.bounds import Bounds, best_of, until_closed


def bounds(lower: float, upper: float) -> Bounds:
    return Bounds(lower=lower, upper=upper, lam=np.array([lower]), host=np.array([upper]))


def halving(steps: int) -> Iterator[Bounds]:
    """Gap 1, then half as much every so many steps."""
    return (bounds(0, 0.5 ** (n // steps)) for n in itertools.count())


def test_each_side_keeps_its_own_proof() -> None:
    best = best_of([bounds(0.0, 3.0), bounds(1.0, 5.0), bounds(0.5, 2.0)])
    assert (best.lower, best.upper, best.gap) == (1.0, 2.0, 1.0)
    assert (best.lam[0], best.host[0]) == (1.0, 2.0)


def test_it_stops_when_closed_stalled_or_out_of_steps() -> None:
    assert until_closed(halving(1), tol=0.3, most=99)[1] == 3
    assert until_closed(halving(1), tol=1e-9, most=7)[1] == 7
    assert until_closed(halving(1), tol=1e-9, most=1)[1] == 1
    assert until_closed(halving(10), tol=1e-9, most=99, patience=10)[1] == 99
    assert until_closed(halving(11), tol=1e-9, most=99, patience=10)[1] == 11


def test_patience_counts_from_the_last_time_the_gap_halved() -> None:
    steps = (bounds(0, gap) for gap in (1.0, 0.5, 0.25, *[0.25] * 99))
    assert until_closed(steps, tol=1e-9, most=99, patience=3)[1] == 6


def test_a_gap_of_exactly_the_tolerance_is_not_closed() -> None:
    best, steps = until_closed(halving(1), tol=0.25, most=99)
    assert (best.gap, steps) == (0.125, 4)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((0.2, 0.3), (0.2, 0.3)),
        ((-1e-17, 0.3), (0.0, 0.3)),  # no divergence is negative
        ((0.3, 0.2), (0.2, 0.2)),  # the upper bound is as the host measured it
        ((-2e-17, -1e-17), (0.0, 0.0)),
    ],
)
def test_bounds_that_rounding_crossed_are_put_in_order(
    found: tuple[float, float], expected: tuple[float, float]
) -> None:
    best, _ = until_closed(iter([bounds(*found)]), tol=1.0, most=1)
    assert (best.lower, best.upper) == expected
