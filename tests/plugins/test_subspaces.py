"""`redhost lab subspaces`: what is counted are directions."""

from __future__ import annotations

import pytest
import torch
from red_lab.subspaces import directions, overlap, participation


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
