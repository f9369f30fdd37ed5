"""The router's kind is chosen by rows of the cards that were held back, and the receipt says so."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import redhost
from redhost.core.composition import choose
from redhost.core.composition.choose import TRIED, USUAL, choose_router
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
