"""`redhost lab subspaces`: the page is its metrics', and what is counted are directions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from red_lab.subspaces import directions, overlap, page, participation

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "subspaces"


def test_the_page_is_written_from_its_metrics() -> None:
    metrics = json.loads((RESULTS / "metrics.json").read_text("utf-8"))
    assert (RESULTS / "README.md").read_text("utf-8") == page(metrics)


def test_directions_are_those_of_the_energy_the_largest_first() -> None:
    delta = torch.tensor([[3.0, 0.0, 0.0], [0.0, 1.0, 0.0], [-3.0, 0.0, 0.0]])
    values, vectors = directions(delta)
    assert values.tolist() == pytest.approx([18.0, 1.0, 0.0])
    assert vectors.abs().T.tolist()[0] == pytest.approx([1.0, 0.0, 0.0])


def test_participation_counts_directions_that_share_the_energy() -> None:
    assert participation(torch.tensor([1.0, 0.0, 0.0])) == pytest.approx(1.0)
    assert participation(torch.tensor([2.0, 2.0, 2.0])) == pytest.approx(3.0)
    assert 1.0 < participation(torch.tensor([9.0, 1.0, 0.0])) < 2.0


def test_overlap_is_1_for_one_subspace_and_0_for_orthogonal_ones() -> None:
    eye = torch.eye(4)
    assert overlap(eye[:, :2], eye[:, [1, 0]]) == pytest.approx(1.0)
    assert overlap(eye[:, :2], eye[:, 2:]) == pytest.approx(0.0)
    assert overlap(eye[:, :2], eye[:, 1:3]) == pytest.approx(0.5)
