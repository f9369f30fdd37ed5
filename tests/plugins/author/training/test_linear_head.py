"""A linear head that is solved: as good as one that is trained, from the same rows."""

from __future__ import annotations

import pytest
import torch
from redhost_author.training.linear_head import solve_linear_head

from redhost.core.evaluation.reliability import reliability

LABELS = ("b", "a", "c")


def rows(count: int, *, noise: float) -> tuple[torch.Tensor, list[str]]:
    g = torch.Generator().manual_seed(count)
    answers = [LABELS[n % 3] for n in range(count)]
    z = noise * torch.randn(count, 12, generator=g)
    z[torch.arange(count), torch.arange(count) % 3] += 1
    return z, answers


def test_it_answers_in_the_order_of_the_labels_given() -> None:
    solved = solve_linear_head(*rows(90, noise=0.1), LABELS)
    z, answers = rows(30, noise=0.1)
    assert [LABELS[int(i)] for i in solved.expert(z).argmax(-1)] == answers
    assert solved.expert.labels == LABELS and not any(
        p.requires_grad for p in solved.expert.parameters()
    )


def test_its_loss_is_that_of_rows_it_has_not_seen() -> None:
    """Left out in turn, rows are as likely as fresh ones; in the sums they would look better."""
    z, answers = rows(60, noise=1.0)
    solved = solve_linear_head(z, answers, LABELS)

    def loss(given: torch.Tensor, of: list[str]) -> float:
        target = torch.tensor([LABELS.index(y) for y in of])
        return float(torch.nn.functional.cross_entropy(solved.expert(given), target))

    fresh = loss(*rows(3000, noise=1.0))
    assert solved.loss is not None and abs(solved.loss - fresh) < 0.1
    assert loss(z, answers) < fresh


@pytest.mark.parametrize("noise", [0.3, 0.7])
def test_its_logits_are_log_probabilities_as_they_are(noise) -> None:
    """Sixty rows of a card that are all right would make it as sure as a temperature can."""
    solved = solve_linear_head(*rows(300, noise=noise), LABELS)
    assert solved.expert.temperature == 1.0
    z, answers = rows(3000, noise=noise)
    p = solved.expert(z).softmax(-1)
    right = [LABELS[int(k)] == y for k, y in zip(p.argmax(-1), answers, strict=True)]
    assert reliability(p.amax(-1), torch.tensor(right)).ece < 0.05


def test_a_label_without_rows_is_there_and_never_the_answer() -> None:
    """As of an author whose own validation rows have a label that no other row has."""
    z, answers = rows(90, noise=0.1)
    solved = solve_linear_head(z, answers, ("new", *LABELS))
    found = solved.expert(z)
    assert found[:, 0].unique().numel() == 1
    assert [("new", *LABELS)[int(i)] for i in found.argmax(-1)] == answers


def test_with_a_few_rows_the_label_that_has_one_more_is_not_the_answer_to_all() -> None:
    """Left out, a label's only row is unlikely whatever the weights: it says nothing of them."""
    z, answers = rows(4, noise=0.3)
    solved = solve_linear_head(z, answers, LABELS)
    fresh, right = rows(300, noise=0.3)
    found = [LABELS[int(i)] for i in solved.expert(fresh).argmax(-1)]
    assert sum(a == b for a, b in zip(found, right, strict=True)) > 200


def test_many_uneven_rows_leave_a_label_its_share() -> None:
    z = torch.randn(1000, 12, generator=torch.Generator().manual_seed(0))
    answers = ["a"] * 900 + ["b"] * 100
    found = solve_linear_head(z, answers, ("a", "b")).expert(torch.zeros(1, 12)).softmax(-1)
    assert abs(float(found[0, 0]) - 0.9) < 0.05


def test_two_clusters_of_uneven_size_are_cut_between_them_and_not_at_the_mean() -> None:
    """The mean of all rows lies in the larger one."""
    g = torch.Generator().manual_seed(0)
    answers = ["a"] * 360 + ["b"] * 40
    place = torch.tensor([1.0 if y == "a" else -1.0 for y in answers])
    z = 0.6 * torch.randn(400, 12, generator=g)
    z[:, 0] += place
    found = solve_linear_head(z, answers, ("a", "b")).expert(z).argmax(-1)
    assert float((found == (place < 0).long()).float().mean()) > 0.96
