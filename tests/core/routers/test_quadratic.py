"""The quadratic router: how columns are laid out, taken over, stored and read in pieces."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import redhost
from redhost.core.routers import quadratic
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.routers.linear import LinearRouter
from redhost.core.routers.quadratic import QuadraticRouter
from redhost.core.routers.statistics import StatisticsRouter

D, NAMES = 4, ("a", "b", "c")
KINDS = (QuadraticRouter, StatisticsRouter)
LABELS = {"a": 2, "b": 1, "c": 3}


def domains() -> list[redhost.plugins.ColumnData]:
    """Return clouds of different sizes, spreads and numbers of labels."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for k, (name, labels) in enumerate(LABELS.items()):
        z = k + (1 + k) * torch.randn(20 + 10 * k, D, generator=generator)
        sums = Statistics.of_rows(z, [f"{name}{i % labels}" for i in range(len(z))])
        made.append(redhost.plugins.ColumnData(column=name, z=z, statistics=sums))
    return made


def fit(kind: type[redhost.Router], data: list[redhost.plugins.ColumnData]) -> Any:
    router = kind(width=D, columns=tuple(d.column for d in data))
    router.solve(data)
    return router.requires_grad_(False)


Z = torch.randn(7, D, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", KINDS)
def test_before_it_sees_a_card_no_column_has_a_label(kind) -> None:
    logits = kind(width=D, columns=NAMES)(Z)
    assert logits.shape == (7, 3) and (logits == -torch.inf).all()


def test_what_is_stored_of_columns_and_of_labels() -> None:
    matrices = {StatisticsRouter: D**2, QuadraticRouter: (1 + len(NAMES)) * D**2 + 1}
    for kind, numbers in matrices.items():
        for router, labels in ((kind(width=D, columns=NAMES), 0), (fit(kind, domains()), 6)):
            stored = sum(v.numel() for v in router.state_dict().values())
            assert stored == numbers + labels * (D + 2)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_labels_stand_in_the_order_of_the_columns(kind) -> None:
    assert fit(kind, domains()).owner.tolist() == [0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_retained_in_single_precision(kind) -> None:
    state = fit(kind, domains()).state_dict()
    assert state.pop("owner").dtype == torch.int64
    assert {v.dtype for v in state.values()} == {torch.float32}


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_joins_stands_where_its_name_belongs(kind) -> None:
    data = domains()
    parent = fit(kind, data[::2])
    child = kind(width=D, columns=NAMES)
    child.copy_columns(parent, keep={"a", "c"})
    child.solve(data, only={"b"})
    assert child.owner.tolist() == [0, 0, 1, 2, 2, 2]
    assert torch.equal(child(Z)[:, [0, 2]], parent(Z))
    assert child(Z)[:, 1].isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_leaves_leaves_the_others_as_they_were(kind) -> None:
    whole = fit(kind, domains())
    rest = kind(width=D, columns=("b", "c"))
    rest.copy_columns(whole, keep={"b", "c"})
    assert rest.owner.tolist() == [0, 1, 1, 1]
    assert torch.equal(rest(Z), whole(Z)[:, 1:])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_need_be_retained_or_be_there_to_keep(kind) -> None:
    for parent, keep in ((fit(kind, domains()), ()), (kind(width=D, columns=NAMES), NAMES)):
        child = kind(width=D, columns=NAMES)
        child.copy_columns(parent, keep=keep)
        assert child.owner.tolist() == [] and len(child.bias) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_is_replaced_keeps_nothing_of_its_old_self(kind) -> None:
    data = domains()
    parent, new = fit(kind, data), dataclasses.replace(data[2], column="b")
    child = kind(width=D, columns=NAMES)
    child.copy_columns(parent, keep=set(NAMES))
    child.solve([data[0], new, data[2]], only={"b"})
    assert child.owner.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    torch.testing.assert_close(child(Z)[:, 1], child(Z)[:, 2])


@pytest.mark.parametrize(
    ("kind", "message"), [(QuadraticRouter, "quadratic"), (StatisticsRouter, "statistics")]
)
def test_only_its_own_kind_is_taken_over(kind, message: str) -> None:
    with pytest.raises(TypeError, match=f"^expected a router of kind {message!r}, found 'linear'$"):
        kind(width=D, columns=NAMES).copy_columns(LinearRouter(width=D, columns=NAMES), keep=())


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_have_no_logits(kind) -> None:
    assert fit(kind, domains())(Z[:0]).shape == (0, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_loading_shares_no_memory_with_what_was_loaded(kind) -> None:
    router, again = fit(kind, domains()), kind(width=D, columns=NAMES)
    tensors = {k: v.clone() for k, v in router.state_dict().items()}
    again.load_tensors(tensors)
    for v in tensors.values():
        v.zero_()
    assert torch.equal(again(Z), router(Z))
    assert all(torch.equal(v, again.state_dict()[k]) for k, v in router.state_dict().items())


def test_a_parent_stays_as_it_was_when_its_child_moves() -> None:
    data = domains()
    for kind in KINDS:
        parent = fit(kind, data)
        before = {k: v.clone() for k, v in parent.state_dict().items()}
        child = kind(width=D, columns=NAMES)
        child.copy_columns(parent, keep=set(NAMES))
        with torch.no_grad():
            for v in child.state_dict().values():
                v.zero_()
        assert all(torch.equal(v, parent.state_dict()[k]) for k, v in before.items())


def test_a_domain_of_few_rows_borrows_the_pooled_covariance() -> None:
    """One row and one label: no spread of its own, so (1 − γ) Σ and its shrinkage are all."""
    data = domains()
    z = data[0].z[:1]
    data[0] = dataclasses.replace(data[0], z=z, statistics=Statistics.of_rows(z, ["y"]))
    logits = fit(QuadraticRouter, data)(torch.cat([z, Z]))
    assert logits.isfinite().all() and int(logits[0].argmax()) == 0


def four_columns() -> QuadraticRouter:
    """Return a router of four columns, of 2, 1, 3 and 1 labels."""
    data = domains()
    return fit(QuadraticRouter, [*data, dataclasses.replace(data[1], column="d")])


def test_pieces_are_the_longest_runs_of_columns_with_so_many_labels_or_single_ones() -> None:
    router = four_columns()
    runs = {labels: list(router._pieces(labels)) for labels in (1, 3, 4, 6, 7)}
    singles = [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert runs[1] == singles
    assert runs[3] == [(0, 2), (2, 3), (3, 4)] and runs[4] == [(0, 2), (2, 4)]
    assert runs[6] == [(0, 3), (3, 4)] and runs[7] == [(0, 4)]


@pytest.mark.parametrize("labels", [1, 3, 4, 6])
def test_every_piece_reads_its_own_labels(labels: int, monkeypatch) -> None:
    router = four_columns()
    whole = router(Z)
    monkeypatch.setattr(quadratic, "NUMBERS", labels * Z.numel())
    torch.testing.assert_close(router(Z), whole)
