"""Distilled gates: the teacher's posterior by hand, and what is kept of the student."""

from __future__ import annotations

import math

import pytest
import torch
from redhost_robust.gate_distillation import distil_gate
from torch import Tensor, nn

ONE = torch.tensor([1.0])


class Fixed(nn.Module):
    """A gate that is the same for every z: logits that can be trained."""

    def __init__(self, *shares: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(shares).log())

    def forward(self, z: Tensor) -> Tensor:
        return self.logits.expand(len(z), -1)

    @property
    def shares(self) -> list[float]:
        return self.logits.detach().softmax(-1).tolist()


def rows(*probabilities: list[float]) -> tuple[Tensor, Tensor]:
    """Return a domain's rows: z, which `Fixed` does not look at, and log p_j(y|x)."""
    return torch.zeros(len(probabilities), 3), torch.tensor(probabilities).log()


def cross_entropy(of: list[float], under: list[float]) -> float:
    return -sum(r * math.log(g) for r, g in zip(of, under, strict=True))


def test_the_loss_is_the_cross_entropy_to_the_teachers_posterior() -> None:
    """g = (¼, ¾) and p = (.6, .2): the answer makes both experts as likely, r = (½, ½)."""
    student, here = Fixed(0.2, 0.8), [rows([0.6, 0.2])]
    found = distil_gate(
        student, teacher=Fixed(0.25, 0.75), rows=here, aside=here, weights=ONE, steps=0
    )
    assert found == pytest.approx(cross_entropy([0.5, 0.5], [0.2, 0.8]))
    assert student.shares == pytest.approx([0.2, 0.8])


def test_weights_count_domains_and_not_rows() -> None:
    """Three rows of one domain with λ = ¼, one row of the other with λ = ¾."""
    one, other = rows([0.4, 0.1], [0.2, 0.3], [0.1, 0.9]), rows([0.3, 0.7])
    posteriors = [[0.8, 0.2], [0.4, 0.6], [0.1, 0.9]]
    student, weights = Fixed(0.5, 0.5), torch.tensor([0.25, 0.75])
    options = {"teacher": Fixed(0.5, 0.5), "weights": weights}
    start = distil_gate(Fixed(0.9, 0.1), rows=[one, other], aside=[one, other], steps=0, **options)
    first = sum(cross_entropy(r, [0.9, 0.1]) for r in posteriors) / 3
    assert start == pytest.approx(0.25 * first + 0.75 * cross_entropy([0.3, 0.7], [0.9, 0.1]))
    distil_gate(student, rows=[one, other], aside=[one, other], learning_rate=0.05, **options)
    best = 0.25 * (0.8 + 0.4 + 0.1) / 3 + 0.75 * 0.3
    assert student.shares == pytest.approx([best, 1 - best], abs=1e-4)


def test_as_many_weights_as_domains() -> None:
    here = [rows([0.5, 0.5]), rows([0.5, 0.5])]
    with pytest.raises(ValueError, match="longer"):
        distil_gate(
            Fixed(0.5, 0.5), teacher=Fixed(0.5, 0.5), rows=here, aside=here, weights=ONE, steps=0
        )


def test_the_teacher_is_left_as_it_is() -> None:
    teacher, here = Fixed(0.25, 0.75), [rows([0.5, 0.5])]
    student = Fixed(0.5, 0.5)
    distil_gate(student, teacher=teacher, rows=here, aside=here, weights=ONE, learning_rate=0.05)
    assert torch.equal(teacher.logits, torch.tensor([0.25, 0.75]).log())
    assert teacher.logits.grad is None
    assert student.shares == pytest.approx([0.25, 0.75], abs=1e-4)


def test_a_student_that_sees_z_learns_where_each_expert_is_good() -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(64, 2, generator=generator)
    teacher, student = nn.Linear(2, 2), nn.Linear(2, 2)
    with torch.no_grad():
        teacher.weight.copy_(torch.tensor([[2.0, 0.0], [0.0, 1.0]]))
        for tensor in (teacher.bias, student.weight, student.bias):
            tensor.zero_()
    here = [(z, torch.zeros(64, 2))]  # the answers tell nothing: the posterior is the gate
    distil_gate(student, teacher=teacher, rows=here, aside=here, weights=ONE, learning_rate=0.1)
    with torch.no_grad():
        torch.testing.assert_close(
            student(z).softmax(-1), teacher(z).softmax(-1), atol=1e-3, rtol=0
        )


def test_the_student_ends_at_its_best_on_rows_set_aside() -> None:
    """On its way from .2 to the rows' .9 it passes the .6 of those set aside."""
    student, teacher = Fixed(0.2, 0.8), Fixed(0.5, 0.5)
    aside = [rows([0.6, 0.4])]
    options = {"teacher": teacher, "aside": aside, "weights": ONE}
    found = distil_gate(student, rows=[rows([0.9, 0.1])], learning_rate=0.02, **options)
    assert student.shares == pytest.approx([0.6, 0.4], abs=0.03)
    assert found == pytest.approx(cross_entropy([0.6, 0.4], student.shares))
    left = student.logits.detach().clone()
    again = distil_gate(student, rows=[rows([0.1, 0.9])], steps=20, learning_rate=0.5, **options)
    assert again == pytest.approx(found)
    assert torch.equal(student.logits, left)  # nothing was better than where it began


def test_its_rate_falls_along_a_cosine() -> None:
    """Far from the answer the slope is ±1, a step its rate: .1 (1 + cos πt/T)/2 sums to .55."""
    student, here = Fixed(0.5, 0.5), [rows([1.0, 0.0])]
    with torch.no_grad():
        student.logits.copy_(torch.tensor([-50.0, 50.0]))
    distil_gate(
        student,
        teacher=Fixed(0.5, 0.5),
        rows=here,
        aside=here,
        weights=ONE,
        steps=10,
        learning_rate=0.1,
    )
    assert student.logits.tolist() == pytest.approx([-49.45, 49.45], abs=1e-4)
