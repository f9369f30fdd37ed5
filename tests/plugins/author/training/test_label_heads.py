"""Linear heads of sets of labels that are solved: calibrated, and as good as trained ones."""

from __future__ import annotations

import torch
from redhost_author.training.label_heads import PENALTIES, solve_label_heads

from redhost.core.bus.experts import Linear
from redhost.core.bus.label_set_head import SigmoidHead

LABELS, HEAD = ("b", "a"), SigmoidHead()
D = 12


def rows(count: int, *, noise: float = 1.0) -> tuple[torch.Tensor, list[str]]:
    """Rows whose first two numbers say whether each label holds, for each by itself."""
    g = torch.Generator().manual_seed(count)
    holds = torch.rand(count, 2, generator=g) < torch.tensor([0.5, 0.2])
    z = noise * torch.randn(count, D, generator=g)
    z[:, :2] += 2.0 * holds
    return z, list(HEAD.answers(holds, LABELS))


NOBODY = torch.zeros(0, D)


def test_it_answers_each_label_by_itself() -> None:
    solved = solve_label_heads(*rows(400, noise=0.1), LABELS, others=NOBODY)
    z, answers = rows(100, noise=0.1)
    assert [p.label for p in HEAD.read(torch.sigmoid(solved.expert(z)), LABELS)] == answers
    assert solved.expert.labels == LABELS and not any(
        p.requires_grad for p in solved.expert.parameters()
    )


def test_its_probabilities_are_those_of_rows_it_has_not_seen() -> None:
    """Of two Gaussians the log odds are linear, so nothing is better than this head at its best."""
    solved = solve_label_heads(*rows(400), LABELS, others=NOBODY)
    z, answers = rows(5000)
    targets = HEAD.targets(answers, LABELS)
    loss = float(HEAD.loss(solved.expert(z), targets))
    shares = torch.tensor([0.5, 0.2])
    best = float(HEAD.loss(2 * z[:, :2] - 2 + (shares / (1 - shares)).log(), targets))
    assert solved.loss is not None and abs(solved.loss - loss) < 0.1
    assert best < loss < best + 0.1


def test_texts_of_the_background_have_no_label() -> None:
    z, answers = rows(200)
    others = torch.zeros(200, D)
    others[:, 5] = 4.0
    alone = solve_label_heads(z, answers, LABELS, others=NOBODY).expert
    taught = solve_label_heads(z, answers, LABELS, others=others).expert
    far = torch.zeros(1, D)
    far[0, 5] = 4.0
    assert bool((torch.sigmoid(taught(far)) < 0.1).all())
    assert bool((torch.sigmoid(alone(far)) > torch.sigmoid(taught(far))).all())


def test_a_label_without_rows_is_never_answered() -> None:
    z, answers = rows(100)
    solved = solve_label_heads(z, answers, (*LABELS, "c"), others=NOBODY)
    assert float(torch.sigmoid(solved.expert(z))[:, 2].max()) < 0.05


def test_two_rows_are_enough() -> None:
    solved = solve_label_heads(*rows(2), LABELS, others=NOBODY)
    assert solved.loss is not None and solved.loss >= 0
    assert all(bool(t.isfinite().all()) for t in solved.expert.state_dict().values())


def test_nothing_is_less_likely_to_be_wrong_under_its_penalty() -> None:
    """At the least value of the sum its slope is 0: Σ (p − y) z + λ w = 0, and Σ (p − y) = 0."""
    z, answers = rows(300)
    expert = solve_label_heads(z, answers, LABELS, others=NOBODY).expert
    assert isinstance(expert, Linear)
    weight = expert.W.double()
    wrong = torch.sigmoid(z.double() @ weight.T + expert.b.double()) - HEAD.targets(answers, LABELS)
    assert bool((wrong.sum(0).abs() / len(z) < 1e-3).all())
    slope = (wrong.T @ z.double()).flatten()
    ratios = [float((slope + penalty * weight.flatten()).norm()) for penalty in PENALTIES]
    assert min(ratios) / len(z) < 1e-3
