"""The shortlist router: who is queried, what is learnt of confidences, that others idle."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from redhost_robust.hooks import build_router
from redhost_robust.routers.shortlist import ShortlistRouter
from torch import Tensor
from torch.distributions import Normal

import redhost
from redhost.core.bus.bus import Readout
from redhost.core.bus.experts import LowRank
from redhost.core.routers.domain_statistics import Statistics, shrunk
from redhost.core.routers.topk import top_mask

D, K = 8, 30
NAMES = tuple(f"e{k:02}" for k in range(K))


def domains(
    *, rows: int = 24, spread: float = 0.3, seed: int = 0
) -> list[redhost.plugins.ColumnData]:
    """Return K clouds around the corners and edges of a cube; columns 0 and 1 share one."""
    g = torch.Generator().manual_seed(seed)
    means = 2 * torch.randn(K, D, generator=torch.Generator().manual_seed(7))
    means[1] = means[0]
    made = []
    for k, name in enumerate(NAMES):
        z = means[k] + spread * torch.randn(rows, D, generator=g)
        statistics = Statistics.of_rows(z, ["y"] * rows)
        made.append(redhost.plugins.ColumnData(column=name, z=z, statistics=statistics))
    return made


def confidences_of(k: int, n: int) -> Tensor:
    """Return e ``(n, K)``: loud at home, quiet elsewhere."""
    e = torch.full((n, K), 0.5)
    e[:, k] = 3.0
    return e


class Logged(redhost.plugins.RouterSignals):
    """Given confidences, and a log of the masks of those queried."""

    def __init__(self, z: Tensor, confidences: Tensor, log: list[Tensor]) -> None:
        super().__init__(z, values={"confidences": confidences})
        self.log = log

    def query(self, mask: Tensor) -> Tensor:
        self.log.append(mask)
        return super().query(mask)


def listening(
    data: list[redhost.plugins.ColumnData], log: list[Tensor]
) -> list[redhost.plugins.ColumnData]:
    return [
        dataclasses.replace(d, signals=Logged(d.z, confidences_of(k, len(d.z)), log))
        for k, d in enumerate(data)
    ]


def fitted(data: list[redhost.plugins.ColumnData], *, m: int = 4) -> ShortlistRouter:
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


def test_confidences_tell_apart_what_z_cannot() -> None:
    log: list[Tensor] = []
    deaf, router = fitted(domains()), fitted(listening(domains(), log))
    z = torch.cat([d.z for d in domains(seed=1)[:2]])
    own = torch.tensor([0] * 24 + [1] * 24)
    e = torch.cat([confidences_of(0, 24), confidences_of(1, 24)])
    assert (deaf(z).argmax(-1) == own).float().mean() < 0.7
    assert (router(z, Logged(z, e, [])).argmax(-1) == own).float().mean() == 1.0


def test_only_the_shortlist_and_the_row_itself_are_queried() -> None:
    log: list[Tensor] = []
    router = fitted(listening(domains(), log), m=4)
    assert len(log) == K and all((mask.sum(-1) <= 5).all() for mask in log)
    assert all(mask[:, k].all() for k, mask in enumerate(log))
    rows_seen: list[Tensor] = []

    z = torch.randn(9, D)
    router(z, Logged(z, torch.zeros(9, K), rows_seen))
    assert (rows_seen[0].sum(-1) == 4).all()


def test_a_new_column_moves_alone_and_requests_nobody_else() -> None:
    data, log = domains(), []
    old = fitted(listening(data, []))
    new = ShortlistRouter(width=D, columns=NAMES, m=4)
    new.copy_columns(old, keep=set(NAMES) - {"e05"})
    new.solve(listening(data, log), only={"e05"})
    others = torch.arange(K) != 5
    for mine, theirs in zip(new.column_parameters(), old.column_parameters(), strict=True):
        assert torch.equal(mine[others], theirs[others])
    assert all(not mask[:, others].any() for mask in log)
    torch.testing.assert_close(new.weight[5], old.weight[5], atol=1e-4, rtol=1e-4)


def test_a_column_nobody_else_reads_is_believed_neither_more_nor_less() -> None:
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


@pytest.mark.parametrize("rows", [400, 2])
def test_the_second_level_is_the_gaussian_it_says(rows: int) -> None:
    """All D axes kept: the density is that of N(μ, Σ_k) in whitened space, up to one constant."""
    g = torch.Generator().manual_seed(5)
    stretch = torch.diag(torch.linspace(0.2, 2.0, D))
    data = []
    for d in domains(rows=rows):
        z = d.z.mean(0) + torch.randn(rows, D, generator=g) @ stretch
        sums = Statistics.of_rows(z, ["y"] * rows)
        data.append(dataclasses.replace(d, z=z, statistics=sums))
    router = fitted(data)
    z, whitener = torch.randn(6, D, generator=g), router.whitener.detach().double()
    own = 0.5 * (rows - 1) / (rows - 1 + D)
    for k in (2, 17):
        at_home = data[k].z.double()
        spread = whitener @ torch.cov(at_home.T, correction=0) @ whitener.T
        sigma = (1 - own) * torch.eye(D, dtype=torch.float64) + own * spread
        normal = torch.distributions.MultivariateNormal(whitener @ at_home.mean(0), sigma)
        mask = torch.zeros(6, K, dtype=torch.bool)
        mask[:, k] = True
        found = router.densities(z, mask)[:, k].double() - 0.5 * D * math.log(2 * math.pi)
        expected = normal.log_prob(z.double() @ whitener.T)
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-4)


def test_the_first_level_is_the_linear_discriminant() -> None:
    """Its whitener is that of the covariance within columns, shrunk; columns differ in size."""
    mix = torch.eye(D) + torch.ones(D, D).triu()  # so that the dimensions are not independent
    parts = [d.z[: 4 + k % 20] @ mix for k, d in enumerate(domains())]
    data = [
        redhost.plugins.ColumnData(column=n, z=z, statistics=Statistics.of_rows(z, ["y"] * len(z)))
        for n, z in zip(NAMES, parts, strict=True)
    ]
    router, z = fitted(data), torch.randn(6, D, generator=torch.Generator().manual_seed(5))
    rows = torch.cat([d.z - d.z.mean(0) for d in data]).double()
    freedom = len(rows) - K
    sigma = shrunk(rows.T @ rows / freedom, freedom=freedom)
    whitener = router.whitener.detach().double()
    unit = torch.eye(D, dtype=torch.float64)
    torch.testing.assert_close(whitener @ sigma @ whitener.T, unit, atol=1e-5, rtol=0)
    means = torch.stack([d.z.mean(0) for d in data]).double()
    weight = means @ torch.linalg.inv(sigma)
    expected = z.double() @ weight.T - 0.5 * (weight * means).sum(-1)
    torch.testing.assert_close(router.scores(z).double(), expected, atol=1e-2, rtol=1e-4)


def test_off_the_axes_a_column_has_one_variance_for_all_directions() -> None:
    """More dimensions than axes: the rest of a column's own covariance is kept as its mean."""
    width, rows = 40, 60
    g = torch.Generator().manual_seed(3)
    data = []
    for k in range(2):
        z = k + torch.randn(rows, width, generator=g) * torch.linspace(0.2, 2.0, width)
        sums = Statistics.of_rows(z, ["y"] * rows)
        data.append(redhost.plugins.ColumnData(column=f"e{k}", z=z, statistics=sums))
    router = ShortlistRouter(width=width, columns=("e0", "e1"))
    router.solve(data)
    whitener, own = router.whitener.detach().double(), 0.5 * 59 / (59 + width)
    z = torch.randn(5, width, generator=g)
    for k in range(2):
        white = data[k].z.double() @ whitener.T
        size, axes = torch.linalg.eigh(torch.cov(white.T, correction=0))
        size[:-32] = size[:-32].mean()
        sigma = (1 - own) * torch.eye(width, dtype=torch.float64) + own * (axes * size) @ axes.T
        normal = torch.distributions.MultivariateNormal(white.mean(0), sigma)
        found = router.densities(z, torch.ones(5, 2, dtype=torch.bool))[:, k].double()
        expected = normal.log_prob(z.double() @ whitener.T) + 0.5 * width * math.log(2 * math.pi)
        torch.testing.assert_close(found.detach(), expected, atol=1e-2, rtol=1e-3)


def test_who_is_not_queried_has_no_density() -> None:
    mask = torch.zeros(3, K, dtype=torch.bool)
    mask[0, 4] = True
    found = fitted(domains()).densities(torch.zeros(3, D), mask)
    assert torch.equal(found.isfinite(), mask) and (found[~mask] == -torch.inf).all()


def test_confidences_are_gaussians_at_home_and_on_the_lists_of_others() -> None:
    """Columns 0 and 1 stand on each other's lists; away is every such row, of any owner."""
    g = torch.Generator().manual_seed(11)
    data, confidences = domains(), [torch.randn(24, K, generator=g) + k for k in range(K)]
    samples = [
        dataclasses.replace(d, signals=Logged(d.z, e, []))
        for d, e in zip(data, confidences, strict=True)
    ]
    router = fitted(samples)
    on_list = [top_mask(router.scores(d.z), 4) for d in data]
    far = 0
    for k, own in enumerate(confidences):
        away = [e[m[:, k], k] for e, m in zip(confidences, on_list, strict=True) if e is not own]
        samples = (own[:, k], torch.cat(away))
        moments = [x for v in samples if len(v) for x in (v.mean(), v.var(correction=0) + 0.01)]
        far += len(moments) == 2
        expected = torch.stack(moments).repeat(4 // len(moments))
        torch.testing.assert_close(router.voice[k].detach(), expected)
    assert 0 < far < K  # some are on nobody else's list, and theirs is one Gaussian twice


def test_a_column_without_a_confidence_is_believed_neither_more_nor_less() -> None:
    data = listening(domains(), [])
    data[9] = dataclasses.replace(data[9], signals=None)
    router = fitted(data)
    assert router.voice[9].tolist() == [0.0, 1.0, 0.0, 1.0]
    assert all(router.voice[k].tolist() != [0.0, 1.0, 0.0, 1.0] for k in (8, 10))


def test_logits_are_density_and_ratio_of_confidences() -> None:
    g = torch.Generator().manual_seed(2)
    router = fitted(domains())
    with torch.no_grad():
        router.voice.copy_(torch.rand(K, 4, generator=g) + 0.5)
        z, e = domains(seed=1)[3].z, torch.randn(24, K, generator=g)
        home, home_var, away, away_var = router.voice.T
        ratio = Normal(home, home_var.sqrt()).log_prob(e) - Normal(away, away_var.sqrt()).log_prob(
            e
        )
        expected = router.densities(z, top_mask(router.scores(z), 4)) + ratio
        found = router(z, Logged(z, e, []))
    listed = found.isfinite()
    torch.testing.assert_close(found[listed], expected[listed])
    assert torch.equal(listed, top_mask(expected, 2))


def test_one_row_a_column_is_enough() -> None:
    data = domains(rows=1)
    router = fitted(data)
    assert all(v.isfinite().all() for v in router.state_dict().values())
    for k, d in enumerate(data[2:], start=2):
        assert int(router(d.z)[0].argmax()) == k


def test_without_options_two_of_eight_have_a_say() -> None:
    router = ShortlistRouter(width=D, columns=NAMES)
    assert (router.k, router.chosen, router.m) == (2, 2, 8)
    assert ShortlistRouter(width=D, columns=NAMES, k=5, m=3).m == 5  # all that answer are read


def test_weights_are_retained_in_single_precision() -> None:
    state = fitted(listening(domains(), [])).state_dict()
    assert {v.dtype for v in state.values()} == {torch.float32}


def test_before_training_columns_are_standard_gaussians_at_zero() -> None:
    router, z = ShortlistRouter(width=D, columns=NAMES), torch.randn(4, D)
    found = router.densities(z, torch.ones(4, K, dtype=torch.bool))
    torch.testing.assert_close(found, -0.5 * z.square().sum(-1)[:, None].expand(4, K))


@pytest.mark.parametrize(("kind", "k", "m"), [("shortlist", 2, 8), ("shortlist:k=1,m=3", 1, 3)])
def test_options(kind: str, k: int, m: int) -> None:
    made = build_router(kind, redhost.BusConfig(width=D, labels=()), NAMES, 0)
    assert isinstance(made, ShortlistRouter) and (made.chosen, made.m) == (k, m)
    one = build_router(kind, redhost.BusConfig(width=D, labels=()), NAMES[:1], 0)
    assert isinstance(one, ShortlistRouter) and (one.chosen, one.m) == (1, 1)


def test_a_bus_reads_and_queries_only_the_shortlist() -> None:
    class Counting(LowRank):
        rows_seen = 0

        def forward(self, z: Tensor) -> Tensor:
            self.rows_seen += len(z)
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
        Readout(classifier=torch.randn(2, D, generator=g), labels=("a", "b")),
        norm=torch.nn.Identity(),
        router=router,
        experts=experts,
    ).requires_grad_(False)
    h = torch.cat([d.z for d in domains(rows=3, seed=2)])
    p, alpha = bus(h)
    assert bus.ensemble.strategy == "grouped"
    assert sum(e.rows_seen for e in experts.values()) == 4 * len(h)  # computed once, and not again
    torch.testing.assert_close(p, bus.probabilities(h, h, alpha))
    everybody = router(h, bus.signals(h))
    torch.testing.assert_close(alpha, torch.softmax(everybody, -1))
