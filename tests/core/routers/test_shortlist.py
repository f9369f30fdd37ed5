"""The shortlist router: who is heard, what it learns of voices, and that idle experts are idle."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import Tensor

import redhost
from redhost.core.routers import ShortlistRouter

D, K = 8, 30
NAMES = tuple(f"e{k:02}" for k in range(K))


def domains(*, rows: int = 24, spread: float = 0.3, seed: int = 0) -> list[redhost.ColumnData]:
    """Return K clouds around the corners and edges of a cube; columns 0 and 1 share one."""
    g = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(K, D, generator=torch.Generator().manual_seed(7))
    means[1] = means[0]
    made = []
    for k, name in enumerate(NAMES):
        z = means[k] + spread * torch.randn(rows, D, generator=g)
        statistics = redhost.Statistics.of_rows(z, ["y"] * rows)
        made.append(redhost.ColumnData(column=name, z=z, statistics=statistics))
    return made


def voices_of(k: int, n: int) -> Tensor:
    """Return e ``(n, K)``: loud at home, quiet elsewhere."""
    e = torch.full((n, K), 0.5)
    e[:, k] = 3.0
    return e


def listening(data: list[redhost.ColumnData], log: list[Tensor]) -> list[redhost.ColumnData]:
    def hear(k: int):
        def heard(mask: Tensor) -> Tensor:
            log.append(mask)
            return torch.where(mask, voices_of(k, len(mask)), 0.0)

        return heard

    return [dataclasses.replace(d, hear=hear(k)) for k, d in enumerate(data)]


def fitted(data: list[redhost.ColumnData], *, m: int = 4) -> ShortlistRouter:
    router = ShortlistRouter(width=D, columns=NAMES, m=m)
    router.solve(data)
    return router


def test_rows_find_their_column_and_two_have_a_say() -> None:
    router = fitted(domains())
    for k, d in enumerate(domains(seed=1)):
        logits = router(d.z)
        assert (torch.isfinite(logits).sum(-1) == 2).all()
        if k > 1:
            assert (logits.argmax(-1) == k).float().mean() >= 0.95


def test_voices_tell_apart_what_z_cannot() -> None:
    log: list[Tensor] = []
    deaf, router = fitted(domains()), fitted(listening(domains(), log))
    z = torch.cat([d.z for d in domains(seed=1)[:2]])
    own = torch.tensor([0] * 24 + [1] * 24)
    e = torch.cat([voices_of(0, 24), voices_of(1, 24)])
    assert (deaf(z).argmax(-1) == own).float().mean() < 0.7
    assert (router(z, e).argmax(-1) == own).float().mean() == 1.0


def test_only_the_shortlist_and_the_row_itself_are_heard() -> None:
    log: list[Tensor] = []
    router = fitted(listening(domains(), log), m=4)
    assert len(log) == K and all((mask.sum(-1) <= 5).all() for mask in log)
    assert all(mask[:, k].all() for k, mask in enumerate(log))
    asked: list[Tensor] = []

    def hear(mask: Tensor) -> Tensor:
        asked.append(mask)
        return torch.zeros(mask.shape)

    router.listen(torch.randn(9, D), hear)
    assert (asked[0].sum(-1) == 4).all()


def test_a_new_column_moves_alone_and_asks_for_nobody_else() -> None:
    data, log = domains(), []
    old = fitted(listening(data, []))
    new = ShortlistRouter(width=D, columns=NAMES, m=4)
    new.adopt(old, keep=set(NAMES) - {"e05"})
    new.solve(listening(data, log), only={"e05"})
    others = torch.arange(K) != 5
    for mine, theirs in zip(new.column_parameters(), old.column_parameters(), strict=True):
        assert torch.equal(mine[others], theirs[others])
    assert all(not mask[:, others].any() for mask in log)
    torch.testing.assert_close(new.weight[5], old.weight[5], atol=1e-4, rtol=1e-4)


def test_a_column_nobody_else_hears_is_believed_neither_more_nor_less() -> None:
    data = listening(domains(), [])
    lonely = ShortlistRouter(width=D, columns=NAMES, k=1, m=1)
    lonely.solve(data)
    home, away = lonely.voice[9].split(2)  # far from all others: on no other row's list of one
    assert torch.equal(home, away) and home[0] == 3.0
    home, away = fitted(data).voice[9].split(2)
    assert home[0] == 3.0 and away[0] == 0.5


def test_what_is_stored_grows_with_columns_times_width() -> None:
    few, many = (
        sum(p.numel() for p in ShortlistRouter(width=64, columns=NAMES[:n]).parameters())
        for n in (10, 20)
    )
    assert many - few == 10 * ((32 + 2) * 64 + 32 + 1 + 2 + 4)


def test_the_second_level_is_the_gaussian_it_says() -> None:
    """All D axes kept: the density is that of N(μ, Σ_k) in whitened space, up to one constant."""
    g = torch.Generator().manual_seed(5)
    stretch = torch.diag(torch.linspace(0.2, 2.0, D))
    data = []
    for d in domains(rows=400):
        z = d.z.mean(0) + torch.randn(400, D, generator=g) @ stretch
        data.append(
            dataclasses.replace(d, z=z, statistics=redhost.Statistics.of_rows(z, ["y"] * 400))
        )
    router = fitted(data)
    z, whitener = torch.randn(6, D, generator=g), router.whitener.detach().double()
    own = 0.5 * 399 / (399 + D)
    for k in (2, 17):
        rows = data[k].z.double()
        spread = whitener @ torch.cov(rows.T, correction=0) @ whitener.T
        sigma = (1 - own) * torch.eye(D, dtype=torch.float64) + own * spread
        normal = torch.distributions.MultivariateNormal(whitener @ rows.mean(0), sigma)
        mask = torch.zeros(6, K, dtype=torch.bool)
        mask[:, k] = True
        found = router.densities(z, mask)[:, k].double() - 0.5 * D * math.log(2 * math.pi)
        expected = normal.log_prob(z.double() @ whitener.T)
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize(("kind", "k", "m"), [("shortlist", 2, 8), ("shortlist:k=1,m=3", 1, 3)])
def test_options(kind: str, k: int, m: int) -> None:
    made = redhost.build_router(kind, redhost.BusConfig(width=D, labels=()), NAMES, 0)
    assert isinstance(made, ShortlistRouter) and (made.chosen, made.heard) == (k, m)
    one = redhost.build_router(kind, redhost.BusConfig(width=D, labels=()), NAMES[:1], 0)
    assert isinstance(one, ShortlistRouter) and (one.chosen, one.heard) == (1, 1)


def test_a_bus_hears_and_asks_only_the_shortlist() -> None:
    class Counting(redhost.LowRank):
        asked = 0

        def forward(self, z: Tensor) -> Tensor:
            self.asked += len(z)
            return super().forward(z)

    g = torch.Generator().manual_seed(0)
    experts = {
        name: Counting(
            U=torch.randn(2, D, generator=g),
            V=torch.randn(D, 2, generator=g),
            activation="gelu",
            space="hidden",
            labels=("a", "b"),
        )
        for name in NAMES
    }
    router = fitted(domains(), m=4)
    bus = redhost.Bus(
        norm=torch.nn.Identity(),
        router=router,
        experts=experts,
        classifier=torch.randn(2, D, generator=g),
        labels=("a", "b"),
    ).requires_grad_(False)
    h = torch.cat([d.z for d in domains(rows=3, seed=2)])
    p, alpha = bus(h)
    assert bus.ensemble.kernel == "grouped"
    assert sum(e.asked for e in experts.values()) == 4 * len(h)  # heard once, and not again
    torch.testing.assert_close(p, bus.probabilities(h, h, alpha))
    everybody = router(h, bus.evidence(h))
    torch.testing.assert_close(alpha, torch.softmax(everybody, -1))
