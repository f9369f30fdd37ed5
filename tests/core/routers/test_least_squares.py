"""Ridge regression from sums: what it says of rows that it has not learnt."""

from __future__ import annotations

import pytest
import torch
from redhost_author.training.linear_head import left_out_by_penalty

from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.least_squares import (
    PENALTIES,
    SHARPNESS,
    STARTS,
    LeastSquares,
    sharpest,
)

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


@pytest.mark.parametrize("prior", [None, [0.3, -1.0, 0.5]])
@pytest.mark.parametrize("count", [9, 60])
def test_the_sharpness_minimises_the_loss_of_the_formula(
    prior: list[float] | None, count: int
) -> None:
    """By hand, for every β and κ: two labels of the first group, one of the second."""
    g = torch.Generator().manual_seed(count)
    target = torch.randint(2, (count,), generator=g)
    score = 0.3 * torch.rand(count, 3, generator=g, dtype=torch.float64)
    score[:, 2] += 0.2 * target
    share = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    log_prior = None if prior is None else torch.tensor(prior, dtype=torch.float64)
    found = sharpest(
        score, torch.tensor([0, 0, 1]), target, share=share, usual=0.75, prior=log_prior
    )
    losses = {}
    for kappa in STARTS if count >= 24 else (0.75,):
        for beta in SHARPNESS:
            logits = beta * (score - (1 - kappa) * share)
            logits = logits if log_prior is None else logits + log_prior
            p = logits.softmax(-1)
            own = torch.where(target == 0, p[:, 0] + p[:, 1], p[:, 2])
            losses[beta, kappa] = float(-own.log().mean())
    assert found.loss == pytest.approx(min(losses.values()))
    assert losses[found.beta, found.kappa] == pytest.approx(found.loss)


def test_scores_of_very_different_rows_are_summed_without_underflow() -> None:
    score = torch.tensor([[1000.0, 999.0], [-1000.0, -999.0]], dtype=torch.float64)
    share = torch.full((2,), 0.5, dtype=torch.float64)
    found = sharpest(score, torch.arange(2), torch.tensor([0, 1]), share=share)
    assert found.loss == pytest.approx(float(torch.tensor(-24.0).exp().log1p()), rel=1e-3)


def test_the_standard_error_of_a_sharpness_is_that_of_its_mean() -> None:
    score = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    share = torch.tensor([0.25, 0.75], dtype=torch.float64)
    target = torch.tensor([0, 1, 1])
    found = sharpest(score, torch.tensor([0, 1]), target, share=share)
    assert found.kappa == 1.0  # too few rows to choose it
    margin = found.beta * torch.tensor([2.0, 1.0, -1.0], dtype=torch.float64)
    losses = torch.log1p(torch.exp(-margin))
    assert found.loss == pytest.approx(float(losses.mean()))
    variance = float((losses - losses.mean()).square().mean())
    assert found.error == pytest.approx((variance / 3) ** 0.5)
