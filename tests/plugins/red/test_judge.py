"""How `redhost lab red` judges: exact worst cases, flipped routes, what is counted."""

from __future__ import annotations

import pytest
import torch
from red_lab.red.experts import Outputs
from red_lab.red.judge import distances, flipped, hits, judge, swaps, worst_case
from red_lab.red.queries import LABELS, Query
from red_lab.red.summary import errors

from .conftest import rows


@pytest.mark.parametrize("residual", [True, False])
def test_the_worst_case_is_exact(residual) -> None:
    """No mass an adversary moves makes a surviving row wrong, and some vertex breaks the rest."""
    generator = torch.Generator().manual_seed(1)
    queries, share = rows(40), 0.4
    outputs = Outputs(base=torch.zeros(40, 99), add=6 * torch.rand(40, 5, 99, generator=generator))
    target = torch.tensor([LABELS.index(q.label) for q in queries])
    outputs.add[torch.arange(40), :, target] += 3.5
    alpha = torch.softmax(torch.randn(40, 5, generator=generator), -1)
    combine = outputs.residual if residual else outputs.mixture
    found = worst_case(outputs, alpha, share, queries, residual=residual)
    vertices = [torch.eye(5)[k].expand(40, 5) for k in range(5)]
    simplex = torch.distributions.Dirichlet(torch.full((5,), 0.2))
    inside = [simplex.sample((40,)) for _ in range(300)]
    right = torch.stack(
        [hits(combine((1 - share) * alpha + share * b), queries) for b in vertices + inside]
    )
    assert 0 < found == float(right.min(0).values.mean()) < 1
    assert found == float(right[:5].min(0).values.mean())
    unmoved = float(hits(combine(alpha), queries).mean())
    assert worst_case(outputs, alpha, 0.0, queries, residual=residual) == unmoved > found


def test_flipped_routes_are_flipped_as_often_as_wanted() -> None:
    alpha = torch.nn.functional.one_hot(torch.zeros(4000, dtype=torch.int64), 5).double()
    assert torch.equal(flipped(alpha, 0.0, seed=0), alpha)
    moved = flipped(alpha, 0.5, seed=0)
    assert float((moved[:, 0] == 0).float().mean()) == pytest.approx(0.5 * 0.8, abs=0.03)
    assert moved.dtype == alpha.dtype and torch.equal(moved.sum(-1), alpha.sum(-1))
    assert not torch.equal(moved, flipped(alpha, 0.5, seed=1))
    torch.testing.assert_close(
        flipped(alpha, 1.0, seed=0).mean(0), torch.full((5,), 0.2).double(), atol=0.03, rtol=0
    )


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


def test_questions_that_have_no_rearrangement_say_nothing_of_swaps() -> None:
    assert swaps(["7"], [Query("a b", "7", "range1", "x")]) is None
    again = [Query("a b", "7", "range1", "x")] * 2
    assert swaps(["7", "7"], again) is None
    both = [Query(text, "7", "range1", text[-1]) for text in ("a x", "b x", "c y", "d y")]
    assert swaps(["7", "7", "7", "8"], both) == 0.5


def test_macro_f1_is_over_true_classes_and_answers_outside_them_count_as_missed() -> None:
    queries = [Query(str(n), y, "range1", str(n)) for n, y in enumerate(("7", "7", "7", "8"))]
    p = torch.zeros(4, 99)
    for row, answer in enumerate(("7", "8", "9", "8")):
        p[row, LABELS.index(answer)] = 1
    f1 = {"7": 2 * 1 / (3 + 1), "8": 2 * 1 / (1 + 2)}
    figures = judge(p, queries)
    assert figures["macro_f1"] == pytest.approx(sum(f1.values()) / 2)
    assert figures["overall"] == 0.5 and figures["boundary"] is None
    assert figures["distances"] == {"0": 2, "1": 1, "2": 1}


def test_every_question_needs_an_answer() -> None:
    queries = [Query("a b", "7", "range1", "x"), Query("c d", "8", "range1", "y")]
    for count in (distances, swaps):
        with pytest.raises(ValueError):
            count(["7"], queries)


def test_a_border_has_an_accuracy_of_its_own() -> None:
    queries = [Query(y, y, "range1", y) for y in ("20", "21", "10")]
    p = torch.zeros(3, 99)
    p[[0, 1, 2], [LABELS.index(y) for y in ("20", "50", "10")]] = 1
    assert judge(p, queries)["boundary"] == 0.5


def test_errors_of_all_seeds_are_counted_together() -> None:
    found = errors([{"0": 90, "1": 3, "10": 2}, {"0": 95, "1": 4, "9": 1}])
    assert found["wrong"] == 10 and found["one"] == 0.7 and found["ten"] == 0.2
    assert (found["median"], found["p90"], found["most"]) == (1, 10, 10)
    assert errors([{"0": 7}]) == {"wrong": 0} | dict.fromkeys(
        ("one", "ten", "median", "p90", "most")
    )
