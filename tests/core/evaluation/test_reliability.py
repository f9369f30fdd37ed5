"""Calibration error, reliability and coverage, against numbers made by hand and by scikit-learn."""

from __future__ import annotations

import pytest
import torch

from redhost.core.evaluation.reliability import reliability


def test_the_error_is_the_mean_gap_of_bins_by_their_rows() -> None:
    # Two bins: three rows at .9 of which one is right, one row at .2 that is right.
    found = reliability(torch.tensor([0.9, 0.9, 0.9, 0.2]), torch.tensor([1.0, 0.0, 0.0, 1.0]))
    assert [(b.rows, b.accuracy) for b in found.bins] == [(1, 1.0), (3, pytest.approx(1 / 3))]
    assert found.ece == pytest.approx((3 * (0.9 - 1 / 3) + 1 * 0.8) / 4)


def test_one_is_in_the_last_bin_and_a_sure_and_right_system_has_no_error() -> None:
    found = reliability(torch.ones(7), torch.ones(7))
    assert [b.rows for b in found.bins] == [7]
    assert found.ece == 0 and {c.accuracy for c in found.coverage} == {1.0}


def test_what_is_drawn_with_its_own_probability_is_nearly_calibrated() -> None:
    generator = torch.Generator().manual_seed(0)
    confidence = torch.rand(20_000, generator=generator)
    hits = (torch.rand(20_000, generator=generator) < confidence).double()
    assert reliability(confidence, hits).ece < 0.015
    assert reliability(confidence**2, hits).ece > 0.1


def test_coverage_is_the_accuracy_of_the_most_confident_rows() -> None:
    confidence = torch.linspace(0, 1, 20)
    hits = (confidence > 0.5).double()
    curve = reliability(confidence, hits).coverage
    found = {c.share: c.accuracy for c in curve}
    assert found[0.5] == 1.0 and found[1.0] == 0.5 and found[0.05] == 1.0
    assert found[0.75] == pytest.approx(10 / 15)
    assert list(found) == sorted(found) and len(found) == 20
