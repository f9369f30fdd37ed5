"""The tests of every router kind, for the kinds of this plugin."""

from __future__ import annotations

from typing import Any

import pytest
from redhost_generate import hooks
from redhost_generate.causal import KINDS

from redhost.core.routers.base import Router

from ...core.routers import test_base, test_routers

PARAMETRIZED = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def of_the_plugin(monkeypatch) -> None:
    """Let tests build the plugin's kinds as a composition does."""
    registered = {}
    hooks.redhost_register_routers(registered.__setitem__)

    def build(kind: str, *arguments: Any) -> Router:
        return registered[kind.partition(":")[0]](kind, *arguments)

    for module in (test_base, test_routers):
        monkeypatch.setattr(module, "build_router", build)


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
    test_routers.test_every_kind_separates_separable_domains(kind.kind)
    test_routers.test_row_level_keeps_every_bit_of_the_other_columns(kind.kind)
