"""The attention router listens to outputs, and knows no column by name."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from redhost_robust.routers.attention import AttentionRouter

import redhost
from redhost.core.bus.evidence import OUTPUT_FEATURES, output_features
from redhost.core.bus.experts import Linear, LowRank
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.training.router import RouterSettings, train_router

D, FAST = 6, RouterSettings(steps=300, learning_rate=0.05)


def signals_of(z: torch.Tensor, features: torch.Tensor) -> redhost.plugins.RouterSignals:
    return redhost.plugins.RouterSignals(z, values={"output_features": features})


def loud_at_home(names: tuple[str, ...], *, rows: int = 60) -> list[redhost.plugins.ColumnData]:
    """Columns whose z tell nothing and whose experts are loud on their own rows."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for k, name in enumerate(names):
        z = torch.randn(rows, D, generator=generator)
        features = torch.randn(rows, len(names), OUTPUT_FEATURES, generator=generator)
        features[:, k, 0] += 6
        made.append(
            redhost.plugins.ColumnData(
                column=name,
                z=z,
                statistics=Statistics.of_rows(z, [name] * rows),
                signals=signals_of(z, features),
            )
        )
    return made


def fit(data: list[redhost.plugins.ColumnData]) -> AttentionRouter:
    names = tuple(d.column for d in data)
    router = AttentionRouter(width=D, columns=names)
    train_router(router, data, columns=names, settings=FAST)
    return router


def right(router: AttentionRouter, data: list[redhost.plugins.ColumnData]) -> float:
    hits = [(router(d.z, d.signals).argmax(-1) == k).float() for k, d in enumerate(data)]
    return float(torch.cat(hits).mean())


def test_it_finds_the_expert_that_has_something_to_say() -> None:
    data = loud_at_home(("a", "b", "c"))
    assert right(fit(data), data) > 0.95


def test_before_training_every_column_is_equal() -> None:
    data = loud_at_home(("a", "b"))
    logits = AttentionRouter(width=D, columns=("a", "b"))(data[0].z, data[0].signals)
    assert torch.equal(logits, torch.zeros_like(logits))


def test_logits_are_scaled_dot_products_of_a_query_and_keys() -> None:
    data = loud_at_home(("a", "b", "c"))
    router, z, features = fit(data), data[0].z, data[0].signals.output_features
    query = z @ router.query.T + router.query_bias
    keys = ((features - router.center) / router.spread) @ router.key.T
    expected = torch.einsum("ba,bka->bk", query, keys) / query.shape[1] ** 0.5
    torch.testing.assert_close(router(z, data[0].signals), expected)


def test_features_are_measured_from_their_mean_in_units_of_their_deviation() -> None:
    data = loud_at_home(("a", "b", "c"))
    known = [d.signals.output_features for d in data if d.signals is not None]
    for features in known:
        features[..., 1] = 3.0
    router, described = fit(data), torch.cat(known).flatten(0, 1)
    torch.testing.assert_close(router.center, described.mean(0))
    deviation = described.std(0, correction=0)
    torch.testing.assert_close(router.spread[[0, 2, 3]], deviation[[0, 2, 3]])
    assert router(data[0].z, data[0].signals).isfinite().all()  # though one never varies


def test_keys_of_standard_features_have_variance_one_at_first() -> None:
    keys = torch.cat([AttentionRouter(width=D, columns=(), seed=n).key for n in range(50)])
    assert float(keys.detach().square().sum(-1).mean()) == pytest.approx(1.0, rel=0.05)


def test_where_nobody_says_anything_all_columns_are_equal() -> None:
    data = loud_at_home(("a", "b", "c"))
    logits = fit(data)(data[0].z)
    assert logits.shape == (60, 3) and torch.equal(logits, logits[:, :1].expand(-1, 3))


def test_permuted_outputs_give_permuted_weights() -> None:
    data = loud_at_home(("a", "b", "c"))
    router = fit(data)
    z, features = data[0].z, data[0].signals.output_features
    options = [2, 0, 1]
    torch.testing.assert_close(
        router(z, signals_of(z, features[:, options])), router(z, data[0].signals)[:, options]
    )


def test_a_column_that_joins_needs_no_training() -> None:
    parent, data = fit(loud_at_home(("a", "b"))), loud_at_home(("a", "b", "c"))
    child = AttentionRouter(width=D, columns=("a", "b", "c"), seed=5)
    child.copy_columns(parent, keep={"a", "b"})
    train_router(child, data, columns=("a", "b", "c"), settings=FAST, only=["c"])
    assert all(torch.equal(v, child.state_dict()[k]) for k, v in parent.state_dict().items())
    assert right(child, data) > 0.95


def test_features_are_confidence_top_spread_and_entropy_of_the_logits_an_expert_adds() -> None:
    generator = torch.Generator().manual_seed(1)
    classifier = torch.randn(4, D, generator=generator)
    hidden = LowRank(
        U=torch.randn(3, D, generator=generator),
        V=torch.randn(D, 3, generator=generator),
        activation="gelu",
        space="hidden",
    )
    own = Linear(
        W=torch.zeros(2, D),
        b=torch.tensor([0.0, 3.0]),
        space="labels",
        labels=("x", "y"),
        temperature=1.5,
    )
    z = torch.randn(5, D, generator=generator)
    features = output_features([hidden, own], z, classifier=classifier, columns=3)
    logits = hidden(z) @ classifier.T
    p = torch.softmax(logits, -1)
    expected = torch.stack(
        [
            logits.norm(dim=-1),
            logits.max(-1).values,
            logits.std(-1, correction=0),
            -(p * p.log()).sum(-1) / torch.tensor(4.0).log(),
        ],
        -1,
    )
    torch.testing.assert_close(features[:, 0], expected)
    torch.testing.assert_close(features[:, 1, 1], torch.full((5,), 2.0))
    assert torch.equal(features[:, 2], torch.zeros(5, OUTPUT_FEATURES))


def test_a_router_without_outputs_stays_undecided() -> None:
    data = [dataclasses.replace(d, signals=None) for d in loud_at_home(("a", "b"))]
    assert torch.equal(fit(data)(data[0].z), torch.zeros(60, 2))
