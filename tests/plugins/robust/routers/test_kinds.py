"""The tests of every router kind, for the kinds of this plugin."""

from __future__ import annotations

from typing import Any

import pytest
from redhost_robust import hooks
from redhost_robust.routers import KINDS, shortlist

from redhost.core.plugins.hooks import PLUGIN_ROUTERS
from redhost.core.routers.base import Router

from ....core.composition import test_every_router
from ....core.composition.test_every_router import GAMES, installed  # noqa: F401  (a fixture)
from ....core.routers import test_base, test_routers

PARAMETRIZED = pytest.mark.parametrize("kind", KINDS)
BY_Z = pytest.mark.parametrize("kind", ["robust", "shortlist"])
"""Kinds that need nothing but z to tell whose input it is."""


@pytest.fixture(autouse=True)
def of_the_plugin(monkeypatch) -> dict[str, Any]:
    """Let tests build the plugin's kinds as a composition does; return what is registered."""
    registered: dict[str, Any] = {}
    hooks.redhost_register_routers(registered.__setitem__)

    def build(kind: str, *arguments: Any) -> Router:
        return registered[kind.partition(":")[0]](kind, *arguments)

    for module in (test_base, test_routers):
        monkeypatch.setattr(module, "build_router", build)
    return registered


def test_all_of_them_are_registered_and_known_by_their_extra(of_the_plugin) -> None:
    names = {kind.kind for kind in KINDS}
    assert names == of_the_plugin.keys()
    assert names == {kind for kind, extra in PLUGIN_ROUTERS.items() if extra == "robust"}


@PARAMETRIZED
def test_it_is_built_and_starts_as_any_other(kind: type[Router]) -> None:
    test_base.test_a_router_is_built_for_a_width_columns_and_a_seed(kind)
    test_base.test_the_seed_is_0_unless_given_and_settles_every_bit(kind)
    test_base.test_before_training_every_column_is_equal(kind)


@PARAMETRIZED
def test_it_is_trained_as_any_other(kind: type[Router]) -> None:
    test_routers.test_a_column_alone_has_all_the_weight(kind.kind)
    test_routers.test_same_seed_same_bits(kind.kind)
    test_routers.test_a_temperature_divides_the_logits_of_the_same_weights(kind.kind)
    test_routers.test_everything_is_frozen_afterwards_even_after_an_exception(kind.kind)


@BY_Z
def test_it_separates_domains_as_any_other(kind: str) -> None:
    test_routers.test_every_kind_separates_separable_domains(kind)
    test_routers.test_row_level_keeps_every_bit_of_the_other_columns(kind)


@pytest.mark.parametrize("numbers", [1, 40, 2**30])
def test_pieces_change_no_logit(numbers: int, monkeypatch) -> None:
    test_routers.test_pieces_change_no_logit(numbers, monkeypatch, "shortlist:m=4,k=4", shortlist)


@pytest.mark.parametrize("count", [1, 2, GAMES, 24])
def test_it_composes_answers_and_comes_back(
    installed,  # noqa: F811
    tmp_path,
    count,
    quick_game,
) -> None:
    test_every_router.test_every_kind_composes_answers_and_comes_back(
        installed, tmp_path, count, KINDS
    )
