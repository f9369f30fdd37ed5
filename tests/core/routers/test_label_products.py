"""Scores by label in batches: what a column's are by itself, in any company and to the bit."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from redhost.core.routers.label_products import column_scores, runs_of


def given(labels: list[int], *, width: int, rows: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    g = torch.Generator().manual_seed(seed)
    count = sum(labels)
    return (
        torch.randn(rows, width, generator=g),
        torch.randn(count, width, generator=g),
        torch.randn(count, generator=g),
    )


def spans(labels: list[int]) -> list[tuple[int, int]]:
    ends = torch.tensor([0, *labels]).cumsum(0).tolist()
    return list(pairwise(ends))


def test_runs_are_columns_beside_each_other_with_as_many_labels() -> None:
    assert runs_of(spans([2, 2, 1, 2, 0, 0])) == [(2, 2), (1, 1), (1, 2), (2, 0)]


def test_a_column_scores_the_log_of_the_sum_over_its_labels() -> None:
    labels = [2, 2, 1, 3]
    z, w, b = given(labels, width=7, rows=5)
    found = column_scores(z, w, b, runs_of(spans(labels)))
    by_hand = [(z @ w[x:y].T + b[x:y]).exp().sum(-1).log() for x, y in spans(labels)]
    torch.testing.assert_close(found, torch.stack(by_hand, -1))


@pytest.mark.parametrize("rows", [1, 2, 17, 64])
@pytest.mark.parametrize("width", [5, 64, 576])
@pytest.mark.parametrize("labels", [1, 2, 7])
def test_nobody_elses_labels_change_a_columns_bits(rows: int, width: int, labels: int) -> None:
    counts = [labels] * 40
    z, w, b = given(counts, width=width, rows=rows)
    whole = column_scores(z, w, b, runs_of(spans(counts)))
    for k in (0, 7, 39):
        x, y = spans(counts)[k]
        for beside in (0, 1, 5):  # columns of as many labels, and one of another number before
            own = slice(x - beside * labels if k else x, y if k else y + beside * labels)
            some, far = w[own], torch.full((labels + 1, width), 3.0)
            company = [labels + 1, *[labels] * (beside + 1)]
            found = column_scores(
                z,
                torch.cat([far, some]),
                torch.cat([torch.zeros(labels + 1), b[own]]),
                runs_of(spans(company)),
            )
            place = 1 + (beside if k else 0)
            assert torch.equal(found[:, place], whole[:, k])
