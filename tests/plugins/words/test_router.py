"""How many of the background's rows the router `words` learns from."""

from __future__ import annotations

import pytest
from redhost_words.router import WordsRouter

from redhost.core.bus.bus import BACKBONE
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.training.router_data import columns_data

from .conftest import TEAMS, texts_of


@pytest.fixture(scope="module")
def shares(text_backbone, author):
    """Compose two teams of a few rows in some forms; return each one's rows, and the shares."""

    def of(**forms: str):
        packages = [
            author(team, texts_of(team, 4 * len(labels), seed=0), form=forms[team])
            for team, labels in TEAMS.items()
        ]
        model = compose(text_backbone, packages, options=RecomposeOptions(router="words")).composed
        router = model.bus.router
        assert isinstance(router, WordsRouter)
        data = columns_data(model, encode=model.backbone.encode, reads=router.reads)
        shares = router.learnt_shares(data).tolist()
        rows = [d.statistics.counts for d in data if d.column != BACKBONE]
        return rows, dict(zip((d.column for d in data), shares, strict=True))

    return of


def test_the_background_counts_as_one_label_where_labels_compete_by_counts(shares) -> None:
    rows, found = shares(fruit="words", sport="words")
    largest, total = max(float(r.max()) for r in rows), sum(float(r.sum()) for r in rows)
    assert found[BACKBONE] == pytest.approx(largest / (largest + total))


def test_without_everybodys_counts_the_background_counts_as_the_largest_expert(shares) -> None:
    rows, found = shares(fruit="words", sport="linear")
    largest, total = max(float(r.sum()) for r in rows), sum(float(r.sum()) for r in rows)
    assert found[BACKBONE] == pytest.approx(largest / (largest + total))
