"""What every kind keeps to: its name, its columns, its seed, and what it says it cannot do."""

from __future__ import annotations

import pytest
import torch

import redhost
from redhost.core.routers import KINDS, LinearRouter, MlpRouter, Router, find_kinds
from redhost.core.routers.base import spans

D, NAMES = 6, ("a", "b", "c")
BUS = redhost.BusConfig(width=D, labels=())
LABELLED = ("evidence", "quadratic", "statistics")
"""Kinds that have no labels, and no answer, before they see a card."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_router_is_built_for_a_width_columns_and_a_seed(kind: type[Router]) -> None:
    router = redhost.build_router(kind.kind, BUS, NAMES, 7)
    assert type(router) is kind
    assert (router.width, router.columns, router.seed) == (BUS.heard, NAMES, 7)


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
        *("attention", "blend", "causal", "causal-mixture", "centroid", "evidence", "hard"),
        *("linear", "mlp", "quadratic", "robust", "shortlist", "statistics", "topk"),
    }


def test_an_unknown_kind_is_left_to_others() -> None:
    assert redhost.build_router("oracle", BUS, NAMES, 0) is None


class Plain(Router):
    """A kind that says nothing of itself."""

    kind = "plain"


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda r: r.solve([]), "a plain router has no closed form"),
        (lambda r: r.listen(torch.zeros(1, D), lambda _: _), "a plain router asks nobody"),
    ],
)
def test_what_a_kind_cannot_do_it_says(call, told: str) -> None:
    with pytest.raises(NotImplementedError, match=f"^{told}$"):
        call(Plain(width=D, columns=NAMES))


def test_a_kind_that_names_no_columns_says_what_to_do() -> None:
    with pytest.raises(redhost.UsageError) as caught:
        Plain(width=D, columns=NAMES).column_parameters()
    assert str(caught.value) == (
        "a plain router does not say which of its weights belong to a column: expected its "
        "column_parameters, for level 'row', found none. Use --level full."
    )


def test_kept_columns_are_found_by_name_and_shared_weights_are_taken_whole() -> None:
    parent = MlpRouter(width=D, columns=("x", "b", "a"), seed=1)
    torch.nn.init.normal_(parent.weight, generator=torch.Generator().manual_seed(0))
    child = MlpRouter(width=D, columns=("a", "b", "new"))
    child.adopt(parent, keep={"a", "b"})
    assert torch.equal(child.weight, torch.stack([*parent.weight[[2, 1]], torch.zeros(256)]))
    assert torch.equal(child.inner_weight, parent.inner_weight)


def test_a_router_may_keep_no_column_at_all() -> None:
    parent, child = MlpRouter(width=D, columns=("x",), seed=1), MlpRouter(width=D, columns=NAMES)
    torch.nn.init.ones_(parent.weight)
    child.adopt(parent, keep=())
    assert torch.equal(child.inner_weight, parent.inner_weight) and not child.weight.any()


def test_a_router_of_more_parts_is_not_taken_over() -> None:
    with pytest.raises(ValueError, match="argument 2 is longer"):
        LinearRouter(width=256, columns=NAMES).adopt(MlpRouter(width=256, columns=NAMES), keep=())


@pytest.mark.parametrize(
    ("owner", "columns", "expected"),
    [
        ([0, 0, 1, 2, 2, 2], 3, ((0, 2), (2, 3), (3, 6))),
        ([1, 1], 3, ((0, 0), (0, 2), (2, 2))),
        ([], 2, ((0, 0), (0, 0))),
    ],
)
def test_spans_count_from_where_the_column_before_ends(owner, columns, expected) -> None:
    assert spans(torch.tensor(owner, dtype=torch.int64), columns) == expected
