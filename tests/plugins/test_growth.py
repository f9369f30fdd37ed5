"""The bench's section `growth`: real small shapes, and the exponents of its page."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from red_lab.bench import page
from red_lab.bench.growth import AXES, Shape, exponent, measure_shape

SMALL = Shape(experts=3, labels=2, width=16)


def test_an_exponent_is_the_slope_of_the_largest_points() -> None:
    costs = {1: 100, 10: 5, 100: 500, 1000: 50_000}
    points = [{"at": n, "bytes": cost, "sums": {"median": 3 * n}} for n, cost in costs.items()]
    assert exponent(points, "bytes") == pytest.approx(2.0)
    assert exponent(points[1:3], "sums") == pytest.approx(1.0)


def test_a_shape_is_measured_as_large_as_it_is() -> None:
    found = measure_shape(SMALL, rounds=1)
    assert found["card"] == 4 * (2 * 17 + 16 * 17 // 2)
    wider = measure_shape(Shape(experts=3, labels=2, width=32), rounds=1)
    assert wider["bytes"] > found["bytes"]
    assert all(found[n]["median"] > 0 for n in ("solve", "query", "sums", "answer"))


def test_the_page_has_every_axis_with_an_exponent_for_each_column() -> None:
    point = measure_shape(SMALL, rounds=1)
    point["solve"]["median"] = 0.003  # its slope over equal points is -1.5e-31
    axes = {axis: [{"at": 10**n, **point} for n in range(1, 4)] for axis in AXES}
    metrics = {"threads": 1, "base": {**asdict(SMALL), "rows": 9}, "axes": axes}
    lines = page("growth", metrics).splitlines()
    slopes = [line for line in lines if line.startswith("| exponent")]
    assert slopes == ["| exponent | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 | 0.00 |"] * len(AXES)
