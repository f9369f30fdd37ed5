"""The blend: one α for every input, and the likeliest one."""

from __future__ import annotations

import torch
from redhost_robust.routers.blend import BlendRouter, likeliest_mixture

import redhost
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.training.router import RouterSettings, train_router

D = 4


def column(name: str, p: list[float] | None, *, rows: int = 8) -> redhost.plugins.ColumnData:
    z = torch.randn(rows, D, generator=torch.Generator().manual_seed(len(name)))
    return redhost.plugins.ColumnData(
        column=name,
        z=z,
        statistics=Statistics.of_rows(z, [name] * rows),
        likelihood=None if p is None else torch.tensor(p).expand(rows, -1),
    )


def fit(data: list[redhost.plugins.ColumnData]) -> BlendRouter:
    router = BlendRouter(width=D, columns=tuple(d.column for d in data))
    router.solve(data)
    return router


def weights(router: BlendRouter) -> torch.Tensor:
    return torch.softmax(router(torch.zeros(1, D)), -1)[0]


def test_weights_do_not_depend_on_the_input() -> None:
    router = fit([column("a", [0.9, 0.1]), column("bb", [0.2, 0.8])])
    logits = router(torch.randn(7, D))
    assert logits.shape == (7, 2) and (logits == logits[:1]).all()


def test_an_expert_that_answers_for_everybody_takes_all_the_weight() -> None:
    alpha = weights(fit([column("a", [0.9, 0.1]), column("bb", [0.8, 0.2])]))
    assert alpha[0] > 0.999


def test_the_mixture_is_the_likeliest_against_a_grid() -> None:
    generator = torch.Generator().manual_seed(0)
    p, w = torch.rand(40, 2, generator=generator).double(), torch.full((40,), 1 / 40).double()
    found = likeliest_mixture(p, w)
    grid = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    value = (w[:, None] * torch.log(p[:, :1] * grid + p[:, 1:] * (1 - grid))).sum(0)
    assert abs(float(found[0] - grid[value.argmax()])) < 1e-3


def test_duplicating_an_expert_changes_no_likelihood() -> None:
    generator = torch.Generator().manual_seed(0)
    p, w = torch.rand(40, 3, generator=generator).double(), torch.full((40,), 1 / 40).double()
    twice = torch.cat([p, p[:, :1]], 1)
    one, two = p @ likeliest_mixture(p, w), twice @ likeliest_mixture(twice, w)
    torch.testing.assert_close(one, two, atol=1e-6, rtol=0)


def test_columns_count_the_same_whatever_their_rows() -> None:
    even = weights(fit([column("a", None), column("bb", None)]))
    uneven = weights(fit([column("a", None, rows=80), column("bb", None)]))
    torch.testing.assert_close(even, torch.tensor([0.5, 0.5]))
    torch.testing.assert_close(uneven, even)


def test_rows_without_answers_count_for_their_own_column_alone() -> None:
    """The maximum of log(.9 a + .3 (1 − a)) + log(1 − a) is where .6 (1 − a) = .6 a + .3."""
    alpha = weights(fit([column("a", [0.9, 0.3]), column("bb", None)]))
    torch.testing.assert_close(alpha[0], torch.tensor(0.25), atol=1e-4, rtol=0)


def test_columns_with_answers_count_the_same_whatever_their_rows() -> None:
    p = {"a": [0.9, 0.3], "bb": [0.2, 0.6]}
    even = weights(fit([column(n, q) for n, q in p.items()]))
    uneven = weights(fit([column("a", p["a"], rows=80), column("bb", p["bb"], rows=4)]))
    torch.testing.assert_close(even, uneven)


def test_an_answer_that_nobody_finds_possible_breaks_nothing() -> None:
    p = torch.tensor([[0.0, 0.0], [0.9, 0.1], [0.1, 0.9]])
    alpha = likeliest_mixture(p, torch.full((3,), 1 / 3))
    torch.testing.assert_close(alpha, torch.tensor([0.5, 0.5], dtype=torch.float64))


def test_a_useless_column_keeps_a_finite_logit() -> None:
    router = fit([column("a", [1.0, 0.0]), column("bb", [1.0, 0.0])])
    assert router.logit.isfinite().all() and weights(router)[1] < 1e-6


def test_row_level_gives_the_new_column_its_share_and_keeps_the_others_bits() -> None:
    p = [[0.9, 0.1, 0.1], [0.1, 0.9, 0.1], [0.1, 0.2, 0.7]]
    whole = fit([column("a", p[0]), column("bb", p[1]), column("c", p[2])])
    parent = fit([column("a", p[0][:2]), column("bb", p[1][:2])])
    child = BlendRouter(width=D, columns=("a", "bb", "c"))
    child.copy_columns(parent, keep={"a", "bb"})
    data = [column("a", p[0]), column("bb", p[1]), column("c", p[2])]
    train_router(child, data, columns=("a", "bb", "c"), settings=RouterSettings(), only=["c"])
    assert torch.equal(child.logit[:2], parent.logit)
    torch.testing.assert_close(weights(child)[2], weights(whole)[2])
