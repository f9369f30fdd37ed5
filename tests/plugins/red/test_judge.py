"""How `redhost lab red` judges: exact worst cases, flipped routes, what is counted."""

from __future__ import annotations

import pytest
import torch
from red_lab.red.experts import Outputs
from red_lab.red.judge import flipped, hits, judge, worst_case
from red_lab.red.queries import LABELS, Query
from red_lab.red.summary import errors

from .conftest import rows


def test_the_worst_case_is_exact() -> None:
    """No mass an adversary moves makes a surviving row wrong, and some vertex breaks the rest."""
    generator = torch.Generator().manual_seed(1)
    queries, share = rows(40), 0.4
    outputs = Outputs(base=torch.zeros(40, 99), add=6 * torch.rand(40, 5, 99, generator=generator))
    target = torch.tensor([LABELS.index(q.label) for q in queries])
    outputs.add[torch.arange(40), :, target] += 3.5
    alpha = torch.softmax(torch.randn(40, 5, generator=generator), -1)
    found = worst_case(outputs, alpha, share, queries, residual=True)
    lowest = torch.ones(40, dtype=torch.float64)
    for _ in range(300):
        beta = torch.distributions.Dirichlet(torch.full((5,), 0.2)).sample((40,))
        lowest *= hits(outputs.residual((1 - share) * alpha + share * beta), queries)
    assert 0 < found <= float(lowest.mean()) < 1
    assert worst_case(outputs, alpha, 0.0, queries, residual=True) == float(
        hits(outputs.residual(alpha), queries).mean()
    )


def test_flipped_routes_are_flipped_as_often_as_wanted() -> None:
    alpha = torch.nn.functional.one_hot(torch.zeros(4000, dtype=torch.int64), 5).float()
    assert torch.equal(flipped(alpha, 0.0, seed=0), alpha)
    moved = float((flipped(alpha, 0.5, seed=0)[:, 0] == 0).float().mean())
    assert moved == pytest.approx(0.5 * 0.8, abs=0.03)


def test_judge_counts_ranges_swaps_and_present_classes_only() -> None:
    queries = [
        Query("a b", "7", "range1", "x"),
        Query("b a", "7", "range1", "x"),
        Query("c d", "30", "range2", "y"),
    ]
    p = torch.zeros(3, 99)
    for row, answer in enumerate(("7", "8", "30")):
        p[row, LABELS.index(answer)] = 1
    figures = judge(p, queries)
    assert figures["overall"] == pytest.approx(2 / 3)
    assert figures["domains"]["range1"] == 0.5 and figures["domains"]["range5"] is None
    assert figures["macro"] == 0.75 and figures["worst"] == 0.5
    assert figures["swap_consistency"] == 0.0
    assert figures["macro_f1"] == pytest.approx((2 / 3 + 1) / 2)
    assert figures["distances"] == {"0": 2, "1": 1}


def test_errors_of_all_seeds_are_counted_together() -> None:
    found = errors([{"0": 90, "1": 3, "10": 2}, {"0": 95, "1": 4, "9": 1}])
    assert found["wrong"] == 10 and found["one"] == 0.7 and found["ten"] == 0.2
    assert (found["median"], found["p90"], found["most"]) == (1, 10, 10)
    assert errors([{"0": 7}]) == {"wrong": 0} | dict.fromkeys(
        ("one", "ten", "median", "p90", "most")
    )
