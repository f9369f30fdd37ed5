"""The ridge router: one regression onto all labels, for any order and any split of the rows."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import redhost
from redhost.core.bus.bus import BACKBONE
from redhost.core.bus.ensemble import Ensemble
from redhost.core.bus.layout import FeatureLayout
from redhost.core.bus.signals import RouterSignals
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.least_squares import (
    BETA,
    EACH,
    PENALTIES,
    LeastSquares,
    Sharpness,
    sharpest,
)
from redhost.core.routers.ridge import SLACK, RidgeRouter, choose_regression
from redhost.core.routers.statistics import StatisticsRouter
from redhost.plugins import ColumnData

D = 5


def rows(seed: int, count: int = 40) -> tuple[torch.Tensor, list[str]]:
    """Two labels of a domain that lies in its own dimension."""
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(count, D, generator=g)
    z[:, seed % D] += 3
    z[: count // 2, (seed + 1) % D] -= 3
    return z, ["x"] * (count // 2) + ["y"] * (count - count // 2)


def column(name: str, seed: int) -> ColumnData:
    z, labels = rows(seed)
    return ColumnData(
        column=name, z=z, statistics=Statistics.of_rows(z, labels), labels=tuple(labels)
    )


def solved(*data: ColumnData) -> RidgeRouter:
    router = RidgeRouter(width=D, columns=tuple(d.column for d in data))
    router.solve(data)
    return router


def by_hand(z: torch.Tensor, one_hot: torch.Tensor, penalty: float) -> torch.Tensor:
    """Return the weights ``(D + 1, Y)`` of ridge regression, intercept last and free."""
    x = torch.cat([z.double(), torch.ones(len(z), 1, dtype=torch.float64)], 1)
    shrunk = torch.diag(torch.tensor([*[penalty] * D, 0.0], dtype=torch.float64))
    return torch.linalg.solve(x.T @ x + shrunk, x.T @ one_hot.double())


def test_sums_give_the_weights_of_a_regression_on_all_rows() -> None:
    (za, _), (zb, _) = rows(0), rows(2)
    found = LeastSquares.solve(
        Statistics.union([column("a", 0).statistics, column("b", 2).statistics]), penalty=7.0
    )
    half = torch.arange(80) // 20
    weights = by_hand(torch.cat([za, zb]), torch.nn.functional.one_hot(half), 7.0)
    torch.testing.assert_close(found.weight, weights[:-1].T)
    torch.testing.assert_close(found.bias, weights[-1])


def test_a_row_left_out_gets_the_score_of_a_regression_without_it() -> None:
    z, labels = rows(1, 24)
    target = torch.tensor(["xy".index(y) for y in labels])
    regression = LeastSquares.solve(Statistics.of_rows(z, labels), penalty=3.0)
    found = regression.left_out(z, target)
    # Also of rows among which there is none of the last label.
    torch.testing.assert_close(regression.left_out(z[:12], target[:12]), found[:12])
    one_hot = torch.nn.functional.one_hot(target)
    for n in range(len(z)):
        rest = torch.arange(len(z)) != n
        weights = by_hand(z[rest], one_hot[rest], 3.0)
        torch.testing.assert_close(found[n], z[n].double() @ weights[:-1] + weights[-1])


def test_sharpness_is_the_one_under_which_the_rows_are_likeliest() -> None:
    score = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.55, 0.45]]).double()
    groups, right, share = torch.arange(2), torch.tensor([0, 1, 0]), torch.full((2,), 0.5)
    assert sharpest(score, groups, right, share=share).beta == 24.0
    found = sharpest(score, groups, 1 - right, share=share)
    assert found.beta == 4.0 and found.loss > 1  # wrong ones had better be soft


def uneven(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores that have the share of labels in them twice, and whose they are."""
    g = torch.Generator().manual_seed(0)
    target = (torch.rand(rows, generator=g) < 0.1).long()
    score = torch.nn.functional.one_hot(target) * 0.2 + torch.tensor([0.9, 0.1])
    return score.double() + 0.05 * torch.randn(rows, 2, generator=g), target


def test_a_labels_share_is_taken_out_where_rows_say_so() -> None:
    score, target = uneven(400)
    share = torch.tensor([0.9, 0.1])
    found = sharpest(score, torch.arange(2), target, share=share)
    assert found.kappa == 0.0
    assert 0 < found.error < found.loss


@pytest.mark.parametrize("usual", [0.0, 1.0])
def test_of_a_few_rows_nobody_tells_what_shares_are_worth(usual: float) -> None:
    score, target = uneven(2 * EACH - 1)
    share = torch.tensor([0.9, 0.1])
    found = sharpest(score, torch.arange(2), target, share=share, usual=usual)
    assert found.kappa == usual


def test_logits_are_the_scores_less_the_share_that_is_taken_out() -> None:
    z, labels = rows(3, 40)
    found = LeastSquares.solve(Statistics.of_rows(z, labels), penalty=3.0)
    weight, bias = found.logits(beta=6.0, kappa=0.25)
    score = z.double() @ found.weight.T + found.bias
    shift = 0.75 * torch.tensor([labels.count(y) / 40 for y in sorted(set(labels))])
    torch.testing.assert_close(z.double() @ weight.T + bias, 6 * (score - shift.double()))


def test_among_penalties_that_rows_hardly_tell_apart_the_largest_is_taken() -> None:
    """The very likeliest one, where rows have to be given their labels."""
    data = [column("a", 0), column("b", 2), column("c", 4)]
    likeliest, taken = choose_regression(data, by_label=True), choose_regression(data)
    columns, known = (
        torch.arange(3).repeat_interleave(2),
        Statistics.union([d.statistics for d in data]),
    )
    z = torch.cat([d.z for d in data])
    label = torch.arange(3).repeat_interleave(40) * 2 + torch.tensor(
        [d.statistics.labels.index(y) for d in data for y in d.labels]
    )

    def of(penalty: float) -> Sharpness:
        solved = LeastSquares.solve(known, penalty=penalty)
        score = solved.left_out(z, label)
        return sharpest(score, columns, columns[label], share=solved.share)

    losses = {p: of(p) for p in PENALTIES}
    least = min(losses.values())
    within = [p for p, x in losses.items() if x.loss <= least.loss + SLACK * least.error]
    assert taken.penalty == max(within) and losses[taken.penalty].kappa == taken.kappa
    assert likeliest.penalty <= taken.penalty


@pytest.mark.parametrize(
    ("each", "seeds", "slack", "by_label", "penalty"),
    [
        (3, (0, 1), 0.0, False, 3.0),  # too few to say how far losses are by chance
        (4, (0, 4), SLACK, False, 100.0),  # eight rows are enough
        (40, (5, 3), SLACK, False, 100.0),
        (40, (5, 3), 0.0, True, 100.0),
        (40, (2, 11), SLACK, False, 300.0),
        (40, (2, 11), 0.0, True, 30.0),
    ],
)
def test_a_penalty_within_the_error_of_enough_rows_is_taken(
    each: int, seeds: tuple[int, int], slack: float, by_label: bool, penalty: float
) -> None:
    drawn = [rows(seed, each) for seed in seeds]
    data = [
        ColumnData(column=str(n), z=z, statistics=Statistics.of_rows(z, y), labels=tuple(y))
        for n, (z, y) in enumerate(drawn)
    ]
    label = torch.tensor([2 * n + "xy".index(y) for n, (_, ys) in enumerate(drawn) for y in ys])
    owner, z = torch.arange(4) // (1 if by_label else 2), torch.cat([z for z, _ in drawn])
    tried = dict[float, Sharpness]()
    for p in PENALTIES:
        one = LeastSquares.solve(Statistics.union([d.statistics for d in data]), penalty=p)
        tried[p] = sharpest(one.left_out(z, label), owner, owner[label], share=one.share)
    least = min(tried.values())
    within = {s: max(p for p, x in tried.items() if x.loss <= least.loss + s * least.error)
              for s in (0.0, SLACK)}  # fmt: skip
    assert within[0.0] < within[SLACK] and within[slack] == penalty
    found = choose_regression(data, by_label=by_label)
    assert (found.penalty, found.beta, found.kappa) == (
        penalty,
        tried[penalty].beta,
        tried[penalty].kappa,
    )


def test_it_tells_whose_text_it_is() -> None:
    data = [column("a", 0), column("b", 2), column("c", 4)]
    router = solved(*data)
    for k, d in enumerate(data):
        assert (router(d.z).argmax(-1) == k).float().mean() > 0.85


def test_without_rows_the_sums_alone_are_enough() -> None:
    shown = [column("a", 0), column("b", 2)]
    drawn = [dataclasses.replace(d, labels=()) for d in shown]
    router = solved(*drawn)
    assert router.scale.tolist() == pytest.approx([80 / 30, 8.0, 1.0])
    for k, d in enumerate(shown):
        assert (router(d.z).argmax(-1) == k).float().mean() > 0.85


def test_no_column_moves_alone() -> None:
    parent = solved(column("a", 0), column("b", 2))
    with pytest.raises(redhost.UsageError, match="no column moves alone") as e:
        RidgeRouter(width=D, columns=("a", "b", "c")).copy_columns(parent, keep={"a", "b"})
    assert e.value.expected == "level full, which is one solve from the cards' sums"
    assert e.value.found == "row" and "--level full" in e.value.hint


def test_a_density_is_that_of_discriminants_of_the_first_numbers(monkeypatch) -> None:
    data = [column("a", 0), column("b", 2)]
    monkeypatch.setattr("redhost.core.routers.ridge.DENSE", 3)
    router = solved(*data)
    first = [dataclasses.replace(d, z=d.z[:, :3], statistics=d.statistics.first(3)) for d in data]
    known = StatisticsRouter(width=3, columns=("a", "b"))
    known.solve(first)
    z = torch.cat([d.z for d in data])
    expected = known.log_density(z[:, :3]) * (D / 3) ** 0.5
    torch.testing.assert_close(router.log_density(z), expected)
    each = known.log_densities(z[:, :3]) * (D / 3) ** 0.5
    torch.testing.assert_close(router.log_densities(z), each)
    assert router.log_density(z).mean() > router.log_density(z + 5).mean()


def test_a_file_brings_all_of_it_back() -> None:
    router = solved(column("a", 0), column("b", 2))
    again = RidgeRouter(width=D, columns=("a", "b"))
    again.load_tensors(router.state_dict())
    z = rows(3)[0]
    assert torch.equal(again(z), router(z))
    assert torch.equal(again.log_density(z), router.log_density(z))


def test_texts_of_nobodys_do_not_outweigh_experts_of_a_few_rows() -> None:
    def few(name: str, seed: int) -> ColumnData:
        z, labels = rows(seed, 6)
        statistics = Statistics.of_rows(z, labels)
        return ColumnData(column=name, z=z, statistics=statistics, labels=tuple(labels))

    z = torch.randn(2000, D, generator=torch.Generator().manual_seed(9))
    nobodys = ("",) * len(z)
    background = ColumnData(
        column="backbone", z=z, statistics=Statistics.of_rows(z, nobodys), labels=nobodys
    )
    found = solved(few("a", 0), few("b", 2), background)
    fresh = torch.cat([rows(0, 400)[0], rows(2, 400)[0]])
    own = torch.arange(800) // 400
    right = found(fresh).argmax(-1) == own
    assert float(right.double().mean()) > 0.6
    beside = solved(column("a", 0), column("b", 2), dataclasses.replace(background, z=z[:40]))
    assert torch.isfinite(beside.weight).all()


def test_learnt_shares_count_no_more_background_than_the_largest_expert_has() -> None:
    z = torch.randn(2000, D, generator=torch.Generator().manual_seed(9))
    background = ColumnData(
        column="backbone",
        z=z,
        statistics=Statistics.of_rows(z, ("",) * len(z)),
        labels=("",) * len(z),
    )
    z, labels = rows(2, 120)
    large = ColumnData(
        column="b", z=z, statistics=Statistics.of_rows(z, labels), labels=tuple(labels)
    )
    data = [column("a", 0), large, background]
    router = RidgeRouter(width=D, columns=("a", "b", "backbone"))
    assert router.learnt_shares(data).tolist() == pytest.approx([1 / 7, 3 / 7, 3 / 7])


def test_logits_are_those_of_the_regression_with_the_chosen_numbers() -> None:
    data = [column("a", 0), column("b", 2)]
    router, found = solved(*data), choose_regression(data)
    assert router.scale.tolist() == pytest.approx([found.penalty, found.beta, found.kappa])
    assert found.beta != BETA  # or nothing would show that it counts
    z = rows(3)[0]
    weight, bias = found.solved.logits(beta=found.beta, kappa=found.kappa)
    scores = (z.double() @ weight.T + bias).view(len(z), 2, 2)
    torch.testing.assert_close(router(z), scores.logsumexp(-1).float(), rtol=1e-4, atol=1e-4)


def test_of_k_columns_the_others_have_no_weight() -> None:
    data = [column("a", 0), column("b", 2), column("c", 4)]
    router, z = RidgeRouter(width=D, columns=("a", "b", "c"), k=2), rows(3)[0]
    router.solve(data)
    finite = router(z).isfinite()
    assert (finite.sum(-1) == 2).all()
    assert torch.equal(finite, solved(*data)(z) > solved(*data)(z).amin(-1, keepdim=True))


def test_a_new_one_keeps_at_most_k_columns() -> None:
    columns = ("a", "b", "c")
    chosen = [RidgeRouter(width=D, columns=columns, k=k).chosen for k in (0, 1, 2, 5)]
    assert chosen == [None, 1, 2, 3]
    new = RidgeRouter(width=D, columns=columns)
    assert new.scale.tolist() == [0.0, BETA, 1.0] and new.weight.shape == (0, D)


class Adding(RidgeRouter):
    """A kind that adds what its signals say to each label's score."""

    def added(self, signals: RouterSignals | None) -> torch.Tensor | None:
        return None if signals is None else signals.z[:, :4]


def test_what_a_kind_adds_counts_in_every_labels_score() -> None:
    data = [column("a", 0), column("b", 2)]
    router, z = Adding(width=D, columns=("a", "b")), rows(3)[0]
    router.solve(data)
    assert torch.equal(router(z), solved(*data)(z))
    found = choose_regression(data)
    weight, bias = found.solved.logits(beta=found.beta, kappa=found.kappa)
    scores = z.double() @ weight.T + bias + z[:, :4]
    nobody = Ensemble(
        {}, classifier=None, layout=FeatureLayout(width=D), strategy="dense", columns=2
    )
    signals = RouterSignals(z, ensemble=nobody)
    torch.testing.assert_close(
        router(z, signals), scores.view(-1, 2, 2).logsumexp(-1).float(), rtol=1e-4, atol=1e-4
    )


def test_of_very_many_rows_some_choose(monkeypatch) -> None:
    rows_seen = list[int]()

    def seen(score: torch.Tensor, *rest: torch.Tensor, share: torch.Tensor) -> Sharpness:
        rows_seen.append(len(score))
        return sharpest(score, *rest, share=share)

    monkeypatch.setattr("redhost.core.routers.ridge.MOST_ROWS", 30)
    monkeypatch.setattr("redhost.core.routers.ridge.sharpest", seen)
    choose_regression([column("a", 0), column("b", 2)])
    assert rows_seen == [27] * len(PENALTIES)  # every third of 80


def test_rows_enough_are_eight_a_label() -> None:
    score, target = uneven(2 * EACH)
    found = sharpest(score, torch.arange(2), target, share=torch.tensor([0.9, 0.1]), usual=0.3)
    assert found.kappa != 0.3


@pytest.mark.parametrize("counts", [(4, 4, 4), (1, 1, 1), (1, 4, 4, 1), (2, 3, 3, 2), (10,) * 20])
@pytest.mark.parametrize("width", [12, 96, 384])
def test_a_columns_bits_are_independent_of_the_other_columns(
    counts: tuple[int, ...], width: int
) -> None:
    def router(weight: torch.Tensor, counts: tuple[int, ...]) -> RidgeRouter:
        made = RidgeRouter(width=width, columns=tuple(map(str, range(len(counts)))))
        owner = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
        parts = {"weight": weight, "bias": weight.sum(1), "scale": made.scale, "owner": owner}
        unchanged = {f"density.{name}": t for name, t in made.density.state_dict().items()}
        made.load_tensors({**parts, **unchanged})
        return made

    g = torch.Generator().manual_seed(width)
    weight = torch.randn(sum(counts), width, generator=g)
    side_by_side = router(weight, counts)
    for batch in (1, 2, 7, 64):
        z = torch.randn(batch, width, generator=g)
        logits = side_by_side(z)
        for k, rows in enumerate(torch.split(weight, counts)):
            alone = router(rows, (len(rows),))
            assert torch.equal(alone(z)[:, 0], logits[:, k])


def test_the_background_is_cut_to_its_first_rows_with_their_labels() -> None:
    expert, (z, labels) = column("a", 0), rows(1, 60)
    background = ColumnData(
        column=BACKBONE, z=z, statistics=Statistics.of_rows(z, labels), labels=tuple(labels)
    )
    router = RidgeRouter(width=D, columns=("a", BACKBONE))
    first, cut = router.evened([expert, background])
    assert first is expert and len(cut.z) == 40
    assert torch.equal(cut.z, z[:40]) and cut.labels == ("x",) * 30 + ("y",) * 10
    assert cut.statistics.counts.tolist() == [30.0, 10.0]
    small = dataclasses.replace(column("a", 0), column=BACKBONE)
    assert router.evened([expert, small])[1] is small  # its sums may be of more rows than it shows


def test_shares_are_exact_in_double_precision() -> None:
    counted = [dataclasses.replace(column(n, k), labels=()) for k, n in enumerate("abc")]
    shares = RidgeRouter(width=D, columns=tuple("abc")).learnt_shares(counted)
    assert shares.dtype == torch.float64 and shares.tolist() == [1 / 3] * 3


def test_its_seed_is_the_given_one_though_nothing_is_drawn() -> None:
    assert RidgeRouter(width=D, columns=("a",)).seed == 0
    assert RidgeRouter(width=D, columns=("a",), seed=7).seed == 7
