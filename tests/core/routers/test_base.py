"""What every kind keeps to: its name, its columns, its seed, and what it says it cannot do."""

from __future__ import annotations

import pytest
import torch

import redhost
from redhost.core.bus.signals import RouterSignals, router_signal
from redhost.core.routers import KINDS, build_router, find_kinds
from redhost.core.routers.base import Router, as_router
from redhost.core.routers.linear import LinearRouter
from redhost.core.routers.mlp import MlpRouter
from redhost.core.routers.quadratic import QuadraticRouter

D, NAMES = 6, ("a", "b", "c")
BUS = redhost.BusConfig(width=D, labels=())
LABELLED = ("evidence", "quadratic", "ridge", "statistics")
"""Kinds that have no labels, and no answer, before they see a card."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_router_is_built_for_a_width_columns_and_a_seed(kind: type[Router]) -> None:
    router = build_router(kind.kind, BUS, NAMES, 7)
    assert type(router) is kind
    assert (router.width, router.columns, router.seed) == (BUS.router_width, NAMES, 7)


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_is_0_unless_given_and_settles_every_bit(kind: type[Router]) -> None:
    one, two = kind(width=D, columns=NAMES), kind(width=D, columns=NAMES, seed=0)
    assert one.seed == 0
    assert all(torch.equal(v, two.state_dict()[k]) for k, v in one.state_dict().items())


@pytest.mark.parametrize("kind", [k for k in KINDS if k.kind not in LABELLED])
def test_before_training_every_column_is_equal(kind: type[Router]) -> None:
    z = torch.randn(2, D, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        alpha = torch.softmax(kind(width=D, columns=NAMES)(z), -1)
    torch.testing.assert_close(alpha, (alpha > 0) * alpha.max())


def test_a_kind_is_every_class_here_that_says_which_kind_it_is() -> None:
    assert set(find_kinds()) == set(KINDS)
    assert {k.kind for k in find_kinds()} == {
        *("centroid", "evidence", "hard", "linear", "mlp", "quadratic", "ridge", "statistics"),
        "topk",
    }


def test_an_unknown_kind_is_left_to_others() -> None:
    assert build_router("oracle", BUS, NAMES, 0) is None


class Plain(Router):
    """A kind that says nothing of itself."""

    kind = "plain"


def test_what_a_kind_cannot_do_it_says() -> None:
    with pytest.raises(NotImplementedError, match=r"^a plain router has no closed form$"):
        Plain(width=D, columns=NAMES).solve([])


def test_a_kind_queries_experts_only_where_it_says_so() -> None:
    z = torch.zeros(1, D)
    with pytest.raises(redhost.UsageError, match=r"^a router reads 'query': "):
        RouterSignals(z).query(torch.ones(1, 3, dtype=torch.bool))
    for given in (None, {"confidences": z}):
        with pytest.raises(redhost.UsageError, match=r"^a router reads 'output_features': "):
            _ = RouterSignals(z, values=given).output_features


def test_a_kind_that_reads_what_nobody_computes_is_refused() -> None:
    with pytest.raises(redhost.UsageError, match="reads what nobody computes") as caught:
        type("Wishful", (Router,), {"reads": frozenset({"confidences", "the future"})})
    assert caught.value.found == "the future" and "confidences" in str(caught.value.expected)


def test_two_functions_cannot_be_one_signal() -> None:
    def mine(signals: RouterSignals, ensemble: object) -> torch.Tensor:
        return signals.z

    with pytest.raises(redhost.UsageError, match=r"^router signal 'confidences': "):
        router_signal("confidences")(mine)


def test_any_module_is_a_router_under_the_names_of_its_own_tensors() -> None:
    linear = torch.nn.Linear(D, 3)
    router = as_router(linear, columns=NAMES)
    z = torch.randn(2, D)
    assert as_router(router) is router and torch.equal(router(z), linear(z))
    assert list(router.state_dict()) == ["weight", "bias"] and not router.reads
    router.load_tensors({"weight": torch.zeros(3, D), "bias": torch.ones(3)})
    assert torch.equal(router(z), torch.ones(2, 3))
    with pytest.raises(redhost.UsageError, match=r"level 'row'.*Use --level full") as caught:
        router.column_parameters()
    assert (caught.value.expected, caught.value.found) == ("a redhost.Router", "Linear")


def test_a_module_of_a_plugin_has_seed_0() -> None:
    router = as_router(torch.nn.Linear(4, 2), columns=("a", "b"))
    assert (router.seed, router.width, router.columns) == (0, 0, ("a", "b"))


def test_a_kind_that_names_no_columns_says_what_to_do() -> None:
    with pytest.raises(redhost.UsageError) as caught:
        Plain(width=D, columns=NAMES).column_parameters()
    assert str(caught.value) == (
        "a plain router does not say which of its weights belong to a column: expected its "
        "column_parameters, for level 'row', found none. Use --level full."
    )


def test_retained_columns_are_found_by_name_and_shared_weights_are_taken_whole() -> None:
    parent = MlpRouter(width=D, columns=("x", "b", "a"), seed=1)
    torch.nn.init.normal_(parent.weight, generator=torch.Generator().manual_seed(0))
    child = MlpRouter(width=D, columns=("a", "b", "new"))
    child.copy_columns(parent, keep={"a", "b"})
    assert torch.equal(child.weight, torch.stack([*parent.weight[[2, 1]], torch.zeros(256)]))
    assert torch.equal(child.inner_weight, parent.inner_weight)


def test_a_router_may_keep_no_column_at_all() -> None:
    parent, child = MlpRouter(width=D, columns=("x",), seed=1), MlpRouter(width=D, columns=NAMES)
    torch.nn.init.ones_(parent.weight)
    child.copy_columns(parent, keep=())
    assert torch.equal(child.inner_weight, parent.inner_weight) and not child.weight.any()


def test_a_router_of_more_parts_is_not_taken_over() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        LinearRouter(width=256, columns=NAMES).copy_columns(
            MlpRouter(width=256, columns=NAMES), keep=()
        )


@pytest.mark.parametrize(
    ("owner", "columns", "expected"),
    [
        ([0, 0, 1, 2, 2, 2], 3, ((0, 2), (2, 3), (3, 6))),
        ([1, 1], 3, ((0, 0), (0, 2), (2, 2))),
        ([], 2, ((0, 0), (0, 0))),
    ],
)
def test_spans_count_from_where_the_column_before_ends(owner, columns, expected) -> None:
    router = QuadraticRouter(width=1, columns=tuple("abc"[:columns]))
    rows = torch.zeros(len(owner), 1), torch.zeros(len(owner))
    tensors = {**router.state_dict(), **dict(zip(router.per_label, rows, strict=True))}
    router.load_tensors({**tensors, "owner": torch.tensor(owner, dtype=torch.int64)})
    assert router._spans == expected
