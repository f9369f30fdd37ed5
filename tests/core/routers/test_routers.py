"""Routers: closed forms by hand, and what level `row` may move."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

import redhost
from redhost.core.routers import KINDS, build_router, quadratic
from redhost.core.routers.centroid import CentroidRouter
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.statistics import StatisticsRouter
from redhost.core.training.router import RouterSettings, make_optimizer, train_router

D = 6
FAST = RouterSettings(steps=300, learning_rate=0.05)


def cloud(
    column: str, center: float, *, rows: int = 30, labels: str = "xy"
) -> redhost.plugins.ColumnData:
    """Two labels around a centre, label y a little higher in the second dimension."""
    g = torch.Generator().manual_seed(int(100 * center))
    z = 0.3 * torch.randn(rows, D, generator=g)
    z[:, 0] += center
    names = [labels[n % 2] for n in range(rows)]
    z[:, 1] += torch.tensor([float(n % 2) for n in range(rows)])
    return redhost.plugins.ColumnData(column=column, z=z, statistics=Statistics.of_rows(z, names))


def columns(*names: str) -> list[redhost.plugins.ColumnData]:
    return [cloud(n, 2.0 * i) for i, n in enumerate(names)]


def build(kind: str, names: tuple[str, ...], *, seed: int = 0) -> redhost.Router:
    router = build_router(kind, redhost.BusConfig(width=D, labels=()), names, seed)
    assert router is not None
    return router


def fit(kind: str, data: list[redhost.plugins.ColumnData], *, seed: int = 0) -> redhost.Router:
    names = tuple(d.column for d in data)
    router = build(kind, names, seed=seed)
    train_router(router, data, columns=names, settings=FAST)
    return router


KIND_NAMES = [k.kind for k in KINDS]


# Domains on a line: a regression masks the one in the middle (`test_ridge`, `test_choose`).
@pytest.mark.parametrize("kind", [k for k in KIND_NAMES if k != "ridge"])
def test_every_kind_separates_separable_domains(kind: str) -> None:
    data = columns("a", "b", "c")
    router = fit(kind, data)
    for k, d in enumerate(data):
        assert (router(d.z).argmax(-1) == k).float().mean() >= 0.95


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_column_alone_has_all_the_weight(kind: str) -> None:
    [data] = columns("a")
    assert torch.equal(torch.softmax(fit(kind, [data])(data.z), -1), torch.ones(30, 1))


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_same_seed_same_bits(kind: str) -> None:
    one, two = fit(kind, columns("a", "b")), fit(kind, columns("a", "b"))
    assert all(torch.equal(one.state_dict()[k], two.state_dict()[k]) for k in one.state_dict())


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_a_temperature_divides_the_logits_of_the_same_weights(kind: str) -> None:
    data = columns("a", "b", "c")
    plain, warm = fit(kind, data), fit(f"{kind}:temperature=4", data)
    assert (plain.temperature, warm.temperature) == (1.0, 4.0)
    assert all(torch.equal(v, warm.state_dict()[k]) for k, v in plain.state_dict().items())
    z = torch.cat([d.z for d in data])
    logits = plain(z)
    assert torch.equal(plain.weights(z), torch.softmax(logits, -1))
    assert torch.equal(warm.weights(z), torch.softmax(logits / 4, -1))


@pytest.mark.parametrize(
    ("value", "expected", "found"),
    [
        ("0", "between 0.001 and 1000", "0"),
        ("0.0005", "between 0.001 and 1000", "0.0005"),
        ("inf", "between 0.001 and 1000", "inf"),
        ("nan", "0 or more", "nan"),
        ("warm", "a number", "'warm'"),
    ],
)
def test_no_temperature_makes_weights_that_are_no_numbers(value, expected, found) -> None:
    with pytest.raises(redhost.UsageError) as caught:
        build(f"topk:k=1,temperature={value}", ("a", "b"))
    assert caught.value.exit_code == 2
    assert str(caught.value) == (
        f"option 'temperature' of router 'topk': expected {expected}, found {found}"
    )


def test_another_seed_gives_another_mlp() -> None:
    one, two = fit("mlp", columns("a", "b"), seed=0), fit("mlp", columns("a", "b"), seed=1)
    assert not torch.equal(one.state_dict()["weight"], two.state_dict()["weight"])


@pytest.mark.parametrize("kind", KIND_NAMES)
def test_everything_is_frozen_afterwards_even_after_an_exception(kind: str) -> None:
    data = columns("a", "b")
    assert not any(p.requires_grad for p in fit(kind, data).parameters())
    router = build(kind, ("a", "b"))

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    if not router.closed_form:
        with pytest.raises(KeyboardInterrupt):
            train_router(
                router,
                data,
                columns=("a", "b"),
                settings=RouterSettings(),
                progress=stop,
            )
        assert not any(p.requires_grad for p in router.parameters())


@pytest.mark.parametrize("kind", ["mlp", "linear"])
def test_the_optimisers_parameters_are_exactly_the_routers(kind: str) -> None:
    router = build(kind, ("a", "b"))
    optimizer = make_optimizer(router, RouterSettings())
    assert {*map(id, optimizer.parameters)} == {*map(id, router.parameters())}


@pytest.mark.parametrize("kind", [k for k in KIND_NAMES if k != "ridge"])
def test_row_level_keeps_every_bit_of_the_other_columns(kind: str) -> None:
    parent = fit(kind, columns("a", "b"))
    data = [cloud("a", 0.0), cloud("ab", 4.0), cloud("b", 2.0)]
    child = build(kind, ("a", "ab", "b"))
    child.copy_columns(parent, keep={"a", "b"})
    train_router(
        child,
        data,
        columns=("a", "ab", "b"),
        settings=FAST,
        only=["ab"],
    )
    z = torch.cat([d.z for d in data])
    before, after = parent(z), child(z)[:, [0, 2]]
    finite = after.isfinite()  # sparse kinds cut what the new column is ahead of
    assert torch.equal(after[finite], before[finite]) and finite[: len(data[0].z), 0].all()
    assert (child(data[1].z).argmax(-1) == 1).float().mean() >= 0.9


@pytest.mark.parametrize("kind", ["statistics", "quadratic", "evidence"])
def test_a_column_taken_out_and_put_back_restores_every_bit(kind: str) -> None:
    """At level `row` from the parent's columns, in whatever order they were moved."""
    data = columns("a", "b", "c")
    whole = fit(kind, data)
    again = build(kind, ("a", "b", "c"))
    again.copy_columns(whole, keep={"a", "c"})
    train_router(again, data, columns=("a", "b", "c"), settings=FAST, only=["b"])
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in whole.state_dict().items())


def test_centroid_is_the_nearest_mean() -> None:
    data = columns("a", "b", "c")
    router = fit("centroid", data)
    assert isinstance(router, CentroidRouter)
    z = torch.randn(50, D, generator=torch.Generator().manual_seed(3)) + 2
    means = torch.stack([d.z.mean(0) for d in data])
    assert torch.equal(router(z).argmax(-1), torch.cdist(z, means).argmin(-1))


def test_statistics_router_is_the_gaussian_posterior() -> None:
    """Against the textbook formula, from rows, with the same covariance."""
    data = [cloud("a", 0.0), cloud("b", 2.0, rows=50)]
    router = fit("statistics", data)
    assert isinstance(router, StatisticsRouter)
    precision = router.precision.double()
    z = torch.randn(20, D, generator=torch.Generator().manual_seed(4)).double()
    scores = []
    for d in data:
        s = d.statistics
        parts = [
            -0.5 * torch.einsum("nd,de,ne->n", z - m, precision, z - m)
            + torch.log(n / s.counts.sum())
            for m, n in zip(s.means, s.counts, strict=True)
        ]
        scores.append(torch.logsumexp(torch.stack(parts), 0))
    expected = torch.log_softmax(torch.stack(scores, -1), -1)
    torch.testing.assert_close(
        torch.log_softmax(router(z.float()).double(), -1), expected, atol=1e-3, rtol=1e-3
    )


def test_quadratic_router_is_the_gaussian_posterior_with_a_covariance_a_domain() -> None:
    """Against torch's own multivariate normal, from the same statistics."""
    from redhost.core.routers.domain_statistics import shrunk, within_scatter
    from redhost.core.routers.quadratic import OWN

    data = [cloud("a", 0.0), cloud("b", 2.0, rows=50)]
    pooled, freedom = within_scatter([d.statistics for d in data])
    z = torch.randn(20, D, generator=torch.Generator().manual_seed(4)).double()
    scores = []
    for d in data:
        own, degrees = within_scatter([d.statistics])
        sigma = shrunk(
            (1 - OWN) * pooled / freedom + OWN * own / degrees,
            freedom=(1 - OWN) * freedom + OWN * degrees,
        )
        parts = [
            torch.distributions.MultivariateNormal(m, sigma).log_prob(z)
            + torch.log(n / d.statistics.counts.sum())
            for m, n in zip(d.statistics.means, d.statistics.counts, strict=True)
        ]
        scores.append(torch.logsumexp(torch.stack(parts), 0))
    expected = torch.log_softmax(torch.stack(scores, -1), -1)
    found = torch.log_softmax(fit("quadratic", data)(z.float()).double(), -1)
    torch.testing.assert_close(found, expected, atol=2e-3, rtol=1e-3)


def test_quadratic_tells_domains_apart_that_differ_in_spread_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = {"narrow": 0.3, "wide": 3.0}
    data = []
    for name, spread in rows.items():
        z = spread * torch.randn(300, D, generator=generator)
        data.append(
            redhost.plugins.ColumnData(
                column=name, z=z, statistics=Statistics.of_rows(z, [name] * 300)
            )
        )
    right = {
        kind: [
            float((fit(kind, data)(d.z).argmax(-1) == k).float().mean()) for k, d in enumerate(data)
        ]
        for kind in ("quadratic", "statistics")
    }
    assert sum(right["quadratic"]) > 1.75 and sum(right["statistics"]) < 1.3


def test_statistics_add_up_and_subtract() -> None:
    z = torch.randn(40, D, generator=torch.Generator().manual_seed(1))
    names = ["x" if n % 3 else "y" for n in range(40)]
    whole = Statistics.of_rows(z, names)
    one, two = (Statistics.of_rows(z[i], [names[n] for n in i]) for i in torch.arange(40).split(25))
    torch.testing.assert_close(whole.counts, one.counts + two.counts)
    torch.testing.assert_close(whole.sums, one.sums + two.sums)
    torch.testing.assert_close(whole.scatter - two.scatter, one.scatter)


def test_statistics_are_sums_by_label_in_double_precision() -> None:
    z = torch.tensor([[1.0, 2.0], [3.0, 5.0], [-1.0, 4.0]])
    s = Statistics.of_rows(z, ["y", "x", "y"])
    assert s.labels == ("x", "y") and s.counts.tolist() == [1.0, 2.0]
    assert s.sums.tolist() == [[3.0, 5.0], [0.0, 6.0]]
    assert s.scatter.tolist() == [[11.0, 13.0], [13.0, 45.0]]
    assert {x.dtype for x in (s.counts, s.sums, s.scatter)} == {torch.float64}
    first = s.first(1)
    assert (first.labels, first.counts.tolist()) == (s.labels, s.counts.tolist())
    assert (first.sums.tolist(), first.scatter.tolist()) == ([[3.0], [0.0]], [[11.0]])


def test_scatter_within_labels_leaves_their_means_out() -> None:
    """Over domains too: an equal name in two of them is two classes."""
    from redhost.core.routers.domain_statistics import within_scatter

    data = [cloud("a", 0.0), cloud("b", 2.0, rows=50)]
    expected = torch.zeros(D, D, dtype=torch.float64)
    for d in data:
        for rows in (d.z[0::2].double(), d.z[1::2].double()):
            expected += (rows - rows.mean(0)).T @ (rows - rows.mean(0))
    scatter, freedom = within_scatter([d.statistics for d in data])
    torch.testing.assert_close(scatter, expected)
    assert freedom == 30 + 50 - 4
    one = Statistics.of_rows(torch.ones(1, D), ["x"])
    assert within_scatter([one])[1] == 1.0  # never nothing to divide by


def test_a_covariance_is_shrunk_by_the_published_formula() -> None:
    """Chen et al. 2010, equation 23, by hand; the least and the most there is."""
    from redhost.core.routers.domain_statistics import oas_shrinkage, shrunk

    s = torch.diag(torch.tensor([8.0, 1.0, 1.0, 2.0], dtype=torch.float64))
    rho = (0.5 * 70 + 144) / ((20 + 0.5) * (70 - 36))  # tr S² = 70, tr² S = 144, D = 4
    assert oas_shrinkage(s, freedom=20) == pytest.approx(rho)
    unit = torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(shrunk(s, freedom=20), (1 - rho) * s + rho * 3 * unit)
    assert (oas_shrinkage(s, freedom=1), oas_shrinkage(unit, freedom=1e9)) == (1.0, 1.0)
    assert oas_shrinkage(0 * unit, freedom=20) == 1.0
    torch.testing.assert_close(shrunk(0 * unit, freedom=20), 1e-6 * unit)
    flat = torch.diag(torch.tensor([4.0, 0.0, 0.0, 0.0], dtype=torch.float64))
    least = torch.linalg.eigvalsh(shrunk(flat, freedom=1e12))[0]
    assert float(least) == pytest.approx(1e-3)
    tilted = s + torch.triu(0.3 * torch.ones(4, 4).double(), 1)
    assert torch.equal(shrunk(tilted, freedom=20), shrunk(tilted, freedom=20).T)


def test_rows_drawn_from_statistics_have_their_means_and_their_covariance() -> None:
    from redhost.core.routers.domain_statistics import within_covariance

    data = cloud("a", 2.0, rows=401)
    z, names = data.statistics.sample(rows=8000, generator=torch.Generator().manual_seed(0))
    assert (z.shape, z.dtype, len(names)) == ((8000, D), torch.float32, 8000)
    off = z.clone()
    for n, label in enumerate(data.statistics.labels):
        mine = torch.tensor([x == label for x in names])
        torch.testing.assert_close(float(mine.float().mean()), 0.5, atol=0.02, rtol=0)
        off[mine] -= data.statistics.means[n].float()
        torch.testing.assert_close(off[mine].mean(0), torch.zeros(D), atol=0.03, rtol=0)
    expected = within_covariance([data.statistics]).float()
    torch.testing.assert_close(off.T @ off / 8000, expected, atol=0.01, rtol=0)
    rare = Statistics.of_rows(torch.randn(10, D), ["x"] * 9 + ["y"])
    _, names = rare.sample(rows=2000, generator=torch.Generator().manual_seed(0))
    assert names.count("y") == pytest.approx(200, abs=40)


def test_saving_and_loading_changes_nothing() -> None:
    z = torch.randn(9, D)
    for kind in KIND_NAMES:
        router = fit(kind, columns("a", "b"))
        again = build(kind, ("a", "b"), seed=7)
        again.load_tensors({k: v.clone() for k, v in router.state_dict().items()})
        assert torch.equal(router(z), again(z))


def test_covariance_is_positive_definite_from_two_rows() -> None:
    from redhost.core.routers.domain_statistics import within_covariance

    z = torch.randn(2, D)
    covariance = within_covariance([Statistics.of_rows(z, ["x", "x"])])
    assert torch.linalg.eigvalsh(covariance).min() > 0


@pytest.mark.parametrize("numbers", [1, 40, 2**30])
def test_pieces_change_no_logit(
    numbers: int, monkeypatch, kind: str = "quadratic", module: ModuleType = quadratic
) -> None:
    data = columns("a", "b", "c", "d")
    z = torch.cat([d.z for d in data])
    router = fit(kind, data)
    whole = router(z)
    monkeypatch.setattr(module, "NUMBERS", numbers)
    torch.testing.assert_close(router(z), whole)
    by_row = torch.cat([router(row[None]) for row in z])
    torch.testing.assert_close(by_row, whole, atol=1e-4, rtol=1e-4)


def test_a_kind_that_names_no_columns_says_so_at_level_row() -> None:
    class Plain(redhost.Router):
        kind = "plain"

    router = Plain(width=2, columns=("a", "b"))
    with pytest.raises(redhost.UsageError, match=r"column_parameters.*--level full"):
        router.copy_columns(router, keep=("a",))
