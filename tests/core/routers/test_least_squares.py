"""Ridge regression from sums: what it says of rows that it has not learnt."""

from __future__ import annotations

import pytest
import torch

from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.least_squares import PENALTIES, LeastSquares, left_out_by_penalty

LABELS = ("a", "b", "c")


def rows(count: int, width: int) -> tuple[torch.Tensor, list[str], torch.Tensor]:
    g = torch.Generator().manual_seed(count + width)
    target = torch.randint(len(LABELS), (count,), generator=g)
    target[: len(LABELS)] = torch.arange(len(LABELS))
    z = torch.randn(count, width, generator=g)
    return z, [LABELS[int(y)] for y in target], target


@pytest.mark.parametrize(("count", "width"), [(20, 8), (8, 20), (20, 20)])
def test_a_row_left_out_is_scored_as_if_it_had_never_been_there(count: int, width: int) -> None:
    """Each row is really left out, with both ways of not doing so: many rows, many numbers."""
    z, answers, target = rows(count, width)
    for penalty, scores in left_out_by_penalty(Statistics.of_rows(z, answers), z, target):
        for n in range(3, count):
            rest = Statistics.of_rows(
                torch.cat([z[:n], z[n + 1 :]]), [*answers[:n], *answers[n + 1 :]]
            )
            solved = LeastSquares.solve(rest, penalty=penalty)
            expected = solved.weight @ z[n].double() + solved.bias
            torch.testing.assert_close(scores[n], expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("shown", [5, 8])
def test_some_rows_or_all_of_them_are_scored_alike(shown: int) -> None:
    z, answers, target = rows(8, 20)
    found = dict(left_out_by_penalty(Statistics.of_rows(z, answers), z[:shown], target[:shown]))
    assert [*found] == [*PENALTIES]
    for penalty, scores in found.items():
        solved = LeastSquares.solve(Statistics.of_rows(z, answers), penalty=penalty)
        torch.testing.assert_close(scores, solved.left_out(z[:shown], target[:shown]))
