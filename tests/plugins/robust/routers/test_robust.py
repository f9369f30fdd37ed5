"""The robust router against the games it can be checked on: tables, copies, rare domains."""

from __future__ import annotations

import dataclasses
import math
from functools import cache

import pytest
import torch
from redhost_robust import MinimaxResult, mixture_losses, move_lambda
from redhost_robust.routers.robust import RobustRouter, from_two_starts, minimax_report
from torch import Tensor

import redhost
from redhost.core.routers.base import AnswerLikelihoods
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.linear import LinearRouter
from redhost.core.training.router import RouterSettings, train_router

LONG, SHORT = (RouterSettings(steps=steps) for steps in (200, 60))


def table(experts: int, points: int, labels: int, *, seed: int) -> Tensor:
    """p_k(y|x) out of thin air, ``(K, X, Y)``."""
    generator = torch.Generator().manual_seed(seed)
    return torch.softmax(2 * torch.randn(experts, points, labels, generator=generator), -1)


def drawn(p: Tensor, own: int, *, rows: int, seed: int) -> AnswerLikelihoods:
    """Rows of domain k: x uniform and one-hot, y from p_k; the likelihood of y by every expert."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(p.shape[1], (rows,), generator=generator)
    y = torch.multinomial(p[own][x], 1, generator=generator).squeeze(1)
    return AnswerLikelihoods(z=torch.eye(p.shape[1])[x], likelihood=p[:, x, y].T)


def columns(p: Tensor, *, rows: int | list[int] = 4000) -> list[redhost.plugins.ColumnData]:
    sizes = rows if isinstance(rows, list) else [rows] * len(p)
    made = []
    for k, n in enumerate(sizes):
        fit = drawn(p, k, rows=n, seed=k)
        made.append(
            redhost.plugins.ColumnData(
                column=f"e{k}",
                z=fit.z,
                statistics=Statistics.of_rows(fit.z, [""] * n),
                likelihood=fit.likelihood,
                gate=drawn(p, k, rows=4000, seed=100 + k),
            )
        )
    return made


def fit(
    data: list[redhost.plugins.ColumnData], *, settings: RouterSettings = SHORT
) -> RobustRouter:
    names = tuple(d.column for d in data)
    router = RobustRouter(width=data[0].z.shape[1], columns=names)
    train_router(router, data, columns=names, settings=settings)
    return router


def value(p: Tensor) -> float:
    """max over λ of I_λ(K; Y | X), x uniform: conditional Blahut-Arimoto, nats."""
    weights = torch.full((len(p),), 1 / len(p), dtype=torch.float64)
    p = p.double()
    divergence = torch.zeros(len(p), dtype=torch.float64)
    for _ in range(5000):
        mixed = torch.einsum("k,kxy->xy", weights, p)
        divergence = (p * (p / mixed).log()).sum(-1).mean(-1)  # (K,)
        weights = torch.softmax(weights.log() + divergence, 0)
    return float((weights * divergence).sum())


def regrets(router: LinearRouter, p: Tensor) -> Tensor:
    """E_x KL(p_k ‖ Σ_j g_j p_j) of every domain, exactly, ``(K,)``."""
    gate = torch.softmax(router(torch.eye(p.shape[1])), -1)  # (X, K)
    mixed = torch.einsum("xk,kxy->xy", gate, p)
    return (p * (p / mixed).log()).sum(-1).mean(-1)


@cache
def fitted(seed: int) -> RobustRouter:
    """Return the router of a table of three experts; nobody may change it."""
    return fit(columns(table(3, 4, 5, seed=seed)))


@pytest.mark.parametrize("seed", [0, 1])
def test_on_a_table_the_worst_regret_is_the_games_value(seed: int) -> None:
    p = table(3, 4, 5, seed=seed)
    worst = float(regrets(fitted(seed), p).max())
    assert value(p) - 1e-6 <= worst <= value(p) + 0.03


def test_lambda_stays_in_the_simplex_and_goes_where_the_regret_is() -> None:
    moved = torch.full((4,), 0.25)
    for _ in range(500):
        moved = move_lambda(moved, torch.tensor([0.0, 3.0, -2.0, 0.5]), rate=0.05, floor=0.01)
        assert moved.sum() == pytest.approx(1, abs=1e-5) and (moved >= 0.0024).all()
    assert moved.argmax() == 1 and moved[1] > 0.9


def test_a_copy_of_an_expert_changes_no_value() -> None:
    p = table(2, 4, 5, seed=3)
    twice = torch.cat([p, p[:1]])
    one, two = (
        float(regrets(fit(columns(p)), p).max()),
        float(regrets(fit(columns(twice), settings=LONG), twice).max()),
    )
    assert two == pytest.approx(one, abs=0.03)


def test_permuted_experts_permute_the_gate() -> None:
    p = table(3, 4, 5, seed=1)
    options = [2, 0, 1]
    x = torch.eye(4)
    one = torch.softmax(fitted(1)(x), -1)
    two = torch.softmax(fit(columns(p[options]))(x), -1)
    torch.testing.assert_close(two, one[:, options], atol=0.1, rtol=0)


def test_one_expert_has_all_the_weight() -> None:
    p = table(1, 3, 4, seed=5)
    assert torch.equal(torch.softmax(fit(columns(p))(torch.eye(3)), -1), torch.ones(3, 1))


def test_separable_domains_leave_no_regret() -> None:
    """Each domain has inputs of its own, so that a gate can tell whose a row is."""
    p = table(2, 4, 5, seed=6)
    data = []
    for k, d in enumerate(columns(p)):
        own = [d.z[:, :2].sum(-1) > 0, d.z[:, 2:].sum(-1) > 0][k]
        gate = d.gate
        assert gate is not None and d.likelihood is not None
        there = [gate.z[:, :2].sum(-1) > 0, gate.z[:, 2:].sum(-1) > 0][k]
        data.append(
            dataclasses.replace(
                d,
                z=d.z[own],
                likelihood=d.likelihood[own],
                gate=AnswerLikelihoods(z=gate.z[there], likelihood=gate.likelihood[there]),
            )
        )
    router = fit(data, settings=LONG)
    asides = [d.gate for d in data if d.gate is not None]
    own_loss = torch.stack([-a.likelihood[:, k].log().mean() for k, a in enumerate(asides)])
    there = [(a.z, a.likelihood.log()) for a in asides]
    assert (mixture_losses(router, there) - own_loss).max() < 0.02


def test_the_worst_domain_is_better_off_than_under_the_average_loss() -> None:
    """One domain a hundred times rarer: a router of the mean loss forgets it."""
    p = table(3, 4, 5, seed=7)
    data = columns(p, rows=[4000, 4000, 40])
    robust = fit(data)
    average = LinearRouter(width=4, columns=robust.columns)
    z = torch.cat([d.z for d in data])
    likelihood = torch.cat([d.likelihood for d in data if d.likelihood is not None])
    optimizer = torch.optim.AdamW(average.parameters(), lr=0.05)
    for _ in range(500):
        mixed = torch.log_softmax(average(z), -1) + likelihood.log()
        loss = -torch.logsumexp(mixed, -1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert regrets(robust, p).max() < 0.6 * regrets(average, p).max()


def test_it_answers_with_the_mixture(redhost_fake_expert, tmp_path, quick_game) -> None:
    for n in range(3):
        redhost_fake_expert(f"team{n}", labels=(f"a{n}", f"b{n}"), seed=n)
    host = redhost.Host.open(tmp_path / "home", backbone="tiny-random")
    report = host.recompose(router="robust").router.robust
    assert report is not None and report.regret == max(report.regrets.values())
    assert sum(report.mixture.values()) == pytest.approx(1, abs=1e-4) and report.gap >= -1e-6
    assert report.mixture.keys() == report.regrets.keys() == {"team0", "team1", "team2"}
    bus, encode = host.composed.bus, host.composed.backbone.encode
    h = encode(["one", "two"])
    p, alpha = bus(h)
    torch.testing.assert_close(p, bus.mixture(h, bus.norm(h), alpha))


def test_a_domain_whose_card_tells_no_answers_keeps_its_own_column() -> None:
    """Nobody's regret speaks for it, and the backbone's column must not take its place."""

    def silent(column: str, z: Tensor) -> redhost.plugins.ColumnData:
        sums = Statistics.of_rows(z, [""] * len(z))
        return redhost.plugins.ColumnData(column=column, z=z, statistics=sums)

    report = columns(table(4, 8, 4, seed=0), rows=500)[:2]
    vectors, background = -torch.eye(8).repeat(20, 1), torch.full((100, 8), 0.5)
    router = fit([*report, silent("e2", vectors), silent("backbone", background)])
    for k, z in ((2, vectors), (3, background)):
        assert torch.softmax(router(z), dim=-1).mean(0)[k] > 0.5


def game(worst: float, *, weights: tuple[float, ...] = (0.25, 0.75)) -> MinimaxResult:
    return MinimaxResult(weights=torch.tensor(weights), regrets=torch.tensor([0.1, worst]), step=1)


@pytest.mark.parametrize(
    ("first", "second", "winner"), [(0.5, 0.3, 2), (0.3, 0.5, 1), (0.4, 0.4, 1)]
)
def test_of_two_starts_the_smaller_worst_regret_is_retained(first, second, winner) -> None:
    """The first from the router's own weights, the second from nothing."""
    router, begun, results = torch.nn.Linear(2, 2), [], [game(first), game(second)]
    own = {k: v.clone() for k, v in router.state_dict().items()}

    def play() -> MinimaxResult:
        begun.append({k: v.clone() for k, v in router.state_dict().items()})
        with torch.no_grad():
            router.weight.fill_(float(len(begun)))
        return results[len(begun) - 1]

    assert from_two_starts(router, play) is results[winner - 1]
    assert (router.weight == winner).all()
    assert all(torch.equal(v, begun[0][k]) for k, v in own.items())
    assert not any(v.any() for v in begun[1].values())


def test_a_receipt_tells_the_mixture_the_regrets_and_how_far_from_the_saddle_point_it_is() -> None:
    found = minimax_report(["a", "b"], game(0.5))
    assert found.mixture == {"a": 0.25, "b": 0.75} and found.worst == "b"
    assert found.regrets == pytest.approx({"a": 0.1, "b": 0.5})
    assert (found.regret, found.gap) == pytest.approx((0.5, 0.5 - (0.25 * 0.1 + 0.75 * 0.5)))


def few(p: Tensor) -> tuple[RobustRouter, list[redhost.plugins.ColumnData]]:
    """Return twenty rows a domain, whose z says whose they are: soon there is less to regret."""
    data = []
    for k, d in enumerate(columns(p, rows=20)):
        z = torch.eye(len(p))[k].expand(4000, -1)
        data.append(dataclasses.replace(d, z=z[:20], gate=AnswerLikelihoods(z, d.gate.likelihood)))
    return RobustRouter(width=len(p), columns=tuple(d.column for d in data)), data


def test_progress_tells_of_both_games_to_their_end() -> None:
    router, data = few(table(2, 3, 4, seed=0))
    seen: list[tuple[int, int]] = []
    router.fine_tune(data, steps=2, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(n, 20) for n in range(1, 21)] * 2  # ten steps for each of the ordinary ones


def test_the_seed_settles_which_rows_are_drawn() -> None:
    made = []
    for seed in (3, 3, 4):
        router, data = few(table(2, 3, 4, seed=2))
        router.seed = seed
        router.fine_tune(data, steps=2)
        made.append(router.weight)
    assert torch.equal(made[0], made[1]) and not torch.equal(made[0], made[2])


def test_one_domain_with_answers_plays_no_game() -> None:
    router, data = few(table(2, 3, 4, seed=0))
    router.fine_tune([data[0], dataclasses.replace(data[1], likelihood=None)], steps=1)
    assert router.minimax_report is None and not router.weight.any()


def own_losses(parts: list[AnswerLikelihoods]) -> Tensor:
    return torch.stack([-part.likelihood[:, k].log().mean() for k, part in enumerate(parts)])


@pytest.mark.parametrize("aside", [True, False])
def test_regrets_are_nats_on_rows_set_aside_or_on_the_fit_rows_where_there_are_none(aside) -> None:
    router, data = few(table(3, 3, 4, seed=1))
    if not aside:
        data = [dataclasses.replace(d, gate=None) for d in data]
    router.fine_tune(data, steps=2)
    parts = [d.gate or AnswerLikelihoods(z=d.z, likelihood=d.likelihood) for d in data]
    found = mixture_losses(router, [(part.z, part.likelihood.log()) for part in parts])
    expected = (found - own_losses(parts)).tolist()
    assert router.minimax_report.regrets == pytest.approx(
        dict(zip(router.columns, expected, strict=True))
    )


def test_an_answer_that_an_expert_finds_impossible_breaks_nothing() -> None:
    """Likelihood 0 counts as 1e-12, in the game and in what the own expert loses."""
    router, data = few(table(2, 3, 4, seed=2))
    for d in data:
        d.likelihood[0] = d.gate.likelihood[0] = 0.0
    router.fine_tune(data, steps=2)
    assert all(math.isfinite(x) for x in router.minimax_report.regrets.values())
    assert router.weight.isfinite().all() and router.weight.any()


def test_columns_without_answers_are_retained_by_their_share_of_the_cross_entropy() -> None:
    """A share of one over the number of columns each."""
    router = RobustRouter(width=3, columns=("a", "b", "c", "d"))
    torch.nn.init.normal_(router.weight, generator=torch.Generator().manual_seed(0))
    z = torch.randn(7, 3, generator=torch.Generator().manual_seed(1))
    others = [(1, z[:4]), (3, z)]
    log_p = [torch.log_softmax(router(rows), -1)[:, k].mean() for k, rows in others]
    torch.testing.assert_close(router._elsewhere(others), -sum(log_p) / 4)
