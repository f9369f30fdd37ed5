"""The router's kind is chosen by rows of the cards that were held back, and the receipt says so."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import redhost
from redhost.core.bus.bus import BACKBONE
from redhost.core.bus.layout import ROUTER, FeatureLayout, FeatureSegment
from redhost.core.composition import choose
from redhost.core.composition.choose import TRIED, USUAL, choose_router, compare_routers
from redhost.core.routers.base import Router
from redhost.core.routers.domain_statistics import Statistics
from redhost.plugins import ColumnData


@pytest.fixture
def installed(redhost_fake_expert):
    for name, seed in (("a", 1), ("b", 2), ("c", 3)):
        redhost_fake_expert(name, labels=(f"{name}0", f"{name}1"), seed=seed)


def open_host(home) -> redhost.Host:
    return redhost.Host.open(home, backbone="tiny-random")


def test_without_a_router_the_usual_one_is_taken(installed, tmp_path) -> None:
    receipt = open_host(tmp_path).recompose()
    assert (receipt.router.kind, receipt.router.tried) == (USUAL, {})
    named = open_host(tmp_path / "named").recompose(router=USUAL)
    assert named.router.digest == receipt.router.digest


def test_on_wide_features_kinds_are_compared_on_held_rows(installed, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(choose, "LARGEST", 1)
    receipt = open_host(tmp_path).recompose()
    tried = receipt.router.tried
    assert set(tried) == set(TRIED) and all(0 <= share <= 1 for share in tried.values())
    assert tried[receipt.router.kind] >= tried[TRIED[0]]
    named = open_host(tmp_path / "named").recompose(router=receipt.router.kind)
    assert named.router.tried == {} and named.router.digest == receipt.router.digest


def test_row_level_stays_with_the_kind_that_is_there(installed, tmp_path) -> None:
    open_host(tmp_path).recompose(router="statistics")
    receipt = open_host(tmp_path).recompose(router="auto", level="row")
    assert (receipt.router.kind, receipt.router.tried) == ("statistics", {})


def line(name: str, place: float) -> ColumnData:
    """Rows around a place on a line: three such domains hide the middle one from a regression."""
    z = torch.randn(60, 16, generator=torch.Generator().manual_seed(int(place)))
    z[:, 0] = 0.2 * z[:, 0] + place
    labels = tuple("xy"[n % 2] for n in range(60))
    return ColumnData(column=name, z=z, statistics=Statistics.of_rows(z, labels), labels=labels)


def test_a_regression_is_not_taken_where_it_is_blind(installed, tmp_path, monkeypatch) -> None:
    host = open_host(tmp_path)
    host.recompose(router="linear")
    model = dataclasses.replace(host.composed)
    data = [line(name, place) for name, place in (("a", 0.0), ("b", 4.0), ("c", 8.0))]
    config = model.backbone.bus_config()
    assert config.router_width != 16  # the rows stand in for those of a wider backbone
    monkeypatch.setattr(choose, "columns_data", lambda *_, **__: data)
    monkeypatch.setattr(choose, "LARGEST", 1)
    monkeypatch.setattr(
        type(model.backbone), "bus_config", lambda _: redhost.BusConfig(width=16, labels=())
    )
    found = choose_router(model, encode=model.backbone.encode)
    assert found.kind == "statistics"
    assert found.tried["ridge"] < 0.9
    assert found.tried["statistics"] > 0.99


def test_what_is_held_back_is_not_in_the_sums() -> None:
    data = line("a", 0.0)
    rest, back = choose._hold_back(data)
    assert back is not None and len(back.z) == 20 and len(rest.z) == 40
    expected = Statistics.of_rows(rest.z, rest.labels)
    torch.testing.assert_close(rest.statistics.sums, expected.sums)
    torch.testing.assert_close(rest.statistics.scatter, expected.scatter)
    assert rest.statistics.counts.tolist() == [20, 20]


def test_every_label_keeps_a_row() -> None:
    z = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    labels = ("x", "x", "x", "x", "x", "y")
    data = ColumnData(column="a", z=z, statistics=Statistics.of_rows(z, labels), labels=labels)
    rest, back = choose._hold_back(data)
    assert back is not None and back.labels == ("x",) and "y" in rest.labels


def test_a_later_kind_has_to_be_better_by_more_than_chance() -> None:
    def hits(right: int) -> torch.Tensor:
        return torch.tensor([1.0] * right + [0.0] * (100 - right)).double()

    assert choose._best({"ridge": hits(90), "statistics": hits(93)}) == "ridge"
    assert choose._best({"ridge": hits(90), "statistics": hits(97)}) == "statistics"
    assert choose._best({"ridge": hits(90), "statistics": hits(90)}) == "ridge"


class Answered(Router):
    """A router that gives a row the column that one of its numbers names."""

    def __init__(self, place: int) -> None:
        super().__init__(width=3, columns=("a", BACKBONE, "b", "c"))
        self.place = place
        self.learnt: list[ColumnData] = []

    def solve(self, columns, *, only=None) -> None:
        self.learnt = [*columns]

    def forward(self, z, signals=None):
        return torch.nn.functional.one_hot(z[:, self.place].long(), 4).double()


def answered(column: str, labels: str, first: list[int], second: list[int]) -> ColumnData:
    """Rows that two routers answer with these columns; the last number counts them."""
    z = torch.tensor([first, second, [*range(len(labels))]]).T.double()
    return ColumnData(
        column=column, z=z, statistics=Statistics.of_rows(z, labels), labels=tuple(labels)
    )


def test_every_third_row_of_a_label_is_held_back_and_routed() -> None:
    a = answered("a", "xxyxyxxyxx", [3, 3, 3, 0, 3, 3, 3, 0, 2, 3], [3, 3, 3, 0, 3, 3, 3, 0, 0, 3])
    beside = answered(BACKBONE, "nnn", [0, 0, 0], [0, 0, 0])
    b = answered("b", "uuu", [0, 0, 2], [0, 0, 2])
    c = answered("c", "vvww", [0, 0, 0, 0], [0, 0, 0, 0])  # too few of each label
    one, other, data = Answered(0), Answered(1), [a, beside, b, c]
    choice = compare_routers({"one": one, "other": other}, data)
    # Of a's rows the third and the sixth x and the third y, and b's last; none of the backbone's.
    assert choice.tried == {"one": 3 / 4, "other": 1.0}
    assert choice.kind == "one"  # one row of four is no evidence
    assert choice.data is data
    for router in (one, other):
        learnt = router.learnt
        assert [d.z[:, 2].tolist() for d in learnt] == [
            [0, 1, 2, 4, 5, 6, 9],
            [0, 1],
            [0, 1],
            [0, 1, 2, 3],
        ]
        assert ["".join(d.labels) for d in learnt] == ["xxyyxxx", "nn", "uu", "vvww"]
        assert [d.statistics.counts.tolist() for d in learnt] == [[5, 2], [2], [2], [2, 2]]
        for d in learnt:
            torch.testing.assert_close(d.statistics.scatter, d.z.T @ d.z)


def test_rows_of_one_expert_compare_nothing() -> None:
    a = answered("a", "xxx", [0, 0, 0], [0, 0, 0])
    beside = answered(BACKBONE, "nnn", [0, 0, 0], [0, 0, 0])
    routers, data = {"one": Answered(0), "other": Answered(1)}, [a, beside]
    choice = compare_routers(routers, data)
    assert (choice.kind, choice.tried) == ("one", {}) and choice.data is data
    assert all(router.learnt == [] for router in routers.values())


@pytest.mark.parametrize(("count", "held"), [(1, 0), (2, 1), (3, 1)])
def test_sums_of_fewer_rows_than_a_card_shows_are_left_one(count, held) -> None:
    shown = answered("a", "xxx", [0, 0, 0], [0, 0, 0])
    few = Statistics.of_rows(shown.z[:count], "x" * count)
    a = dataclasses.replace(shown, statistics=few)
    b = answered("b", "uuu", [2, 2, 2], [2, 2, 2])
    c = answered("c", "vvv", [3, 3, 3], [3, 3, 3])
    router = Answered(0)
    compare_routers({"one": router}, [a, b, c])
    assert [len(d.z) for d in router.learnt] == [3 - held, 2, 2]
    assert router.learnt[0].statistics.counts.tolist() == [count - held]


@pytest.mark.parametrize(
    ("segment", "largest", "kinds"),
    [
        ({}, 0, {USUAL}),
        ({}, -1, {*TRIED}),
        ({"instead": True}, 0, {USUAL}),
        ({"instead": True, "readers": (ROUTER,)}, 0, {*TRIED}),
        ({"own_pass": True}, 0, {f"{kind}:k=1" for kind in TRIED}),
    ],
)
def test_what_is_tried_depends_on_what_reads_and_on_the_size(
    installed, tmp_path, monkeypatch, segment, largest, kinds
) -> None:
    host = open_host(tmp_path)
    host.recompose(router="linear")
    model = host.composed
    fields = {"readers": ("a",), **segment}
    part = FeatureSegment(key="", width=2, normalised=False, compute=None, **fields)
    monkeypatch.setattr(model.bus, "layout", FeatureLayout(width=16, segments=(part,)))
    monkeypatch.setattr(
        type(model.backbone), "bus_config", lambda _: redhost.BusConfig(width=16, labels=())
    )
    monkeypatch.setattr(choose, "LARGEST", len(model.bus.columns) * 16**2 + largest)
    data = [line(name, place) for name, place in (("a", 0.0), ("b", 4.0), ("c", 8.0))]
    monkeypatch.setattr(choose, "columns_data", lambda *_, **__: data)
    choice = choose_router(model, encode=model.backbone.encode)
    assert ({*choice.tried} or {choice.kind}) == kinds
    assert choice.kind in kinds and choice.data is (data if choice.tried else None)


@pytest.mark.parametrize(
    ("routers", "own_pass", "kind"),
    [
        (("words", ""), False, "words"),
        (("words", "words"), True, "words:k=1"),
        (("words", "notes"), False, USUAL),
    ],
)
def test_the_one_kind_that_experts_name_is_taken(
    installed, tmp_path, monkeypatch, routers, own_pass, kind
) -> None:
    host = open_host(tmp_path)
    host.recompose(router="linear")
    model = host.composed
    part = FeatureSegment(
        key="", width=2, normalised=False, compute=None, readers=("a",), own_pass=own_pass
    )
    monkeypatch.setattr(model.bus, "layout", FeatureLayout(width=16, segments=(part,)))
    for expert, name in zip(model.bus.ensemble.parts, routers, strict=False):
        monkeypatch.setattr(expert, "router", name)
    assert choose_router(model, encode=model.backbone.encode).kind == kind
