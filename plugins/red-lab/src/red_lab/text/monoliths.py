"""Train baselines on the pooled rows of all teams, which no single team has.

Pooled rows include the cards' rows. All models but the last take the same features as input as the
experts do. Settings are chosen on the experts' validation rows.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import torch

import redhost
from red_lab.text.desk import Desk, best_of, every_row, hits
from redhost.core.bus.bus import Readout
from redhost.core.training.expert import ExpertRows, train_expert
from redhost.core.training.linear_head import solve_linear_head

__all__ = ["MONOLITHS"]

INVERSE = (0.0003, 0.001, 0.003, 0.01, 0.03)
"""C of logistic regression on features, each number of which has variance 1."""

WORDS = (3.0, 10.0, 30.0, 100.0)
"""C of logistic regression on tf-idf."""


def residual_head(desk: Desk) -> list[float]:
    """Train one expert as `train-expert` does, with the sum of all experts' ranks."""
    rank = len(desk.parts) * (desk.context.backbone.width // 4)
    everyone, valid = list(every_row(desk.parts)), _valid(desk)
    labels = sorted({r.label for r in everyone})
    settings = redhost.authoring.ExpertSettings(space="labels", seed=0)
    trained = train_expert(
        _rows(desk, everyone),
        Readout(),
        labels=labels,
        settings=dataclasses.replace(settings, rank=rank, off_domain=0.0),
        valid=_rows(desk, valid),
    )
    with torch.inference_mode():
        return hits(best_of(labels, trained.expert(desk.z(desk.test))), desk.test)


def ridge(desk: Desk) -> list[float]:
    """Solve one linear head on all rows, with the closed form that experts use."""
    everyone = [*every_row(desk.parts), *_valid(desk)]
    # λ is chosen on the first rows: mix the teams' rows.
    everyone.sort(key=lambda r: hashlib.sha256(r.text.encode()).hexdigest())
    labels = sorted({r.label for r in everyone})
    solved = solve_linear_head(desk.z(everyone), [r.label for r in everyone], labels)
    with torch.inference_mode():
        return hits(best_of(labels, solved.expert(desk.z(desk.test))), desk.test)


def logistic(desk: Desk) -> list[float]:
    """Fit scikit-learn's logistic regression on the experts' features."""

    def features(rows: Sequence[redhost.Row]) -> Any:
        return desk.z(rows).numpy()

    return _fitted(desk, features, INVERSE)


def words(desk: Desk) -> list[float]:
    """Fit logistic regression on tf-idf of whole texts, with no encoder."""
    library: Any = import_module("sklearn.feature_extraction.text")
    known = library.TfidfVectorizer(sublinear_tf=True, analyzer=str.split)
    known.fit([r.text for r in every_row(desk.parts)])
    return _fitted(desk, lambda rows: known.transform([r.text for r in rows]), WORDS)


def _fitted(
    desk: Desk, features: Callable[[Sequence[redhost.Row]], Any], choices: Sequence[float]
) -> list[float]:
    """Fit with each C, choose the best on validation rows, and refit that one on all rows."""
    regression: Any = import_module("sklearn.linear_model").LogisticRegression
    everyone, valid = list(every_row(desk.parts)), _valid(desk)
    x, y = features(everyone), np.array([r.label for r in everyone])
    aside, right = features(valid), [r.label for r in valid]

    def score(inverse: float) -> float:
        return float(regression(C=inverse, max_iter=300).fit(x, y).score(aside, right))

    best = max(choices, key=score)
    all_rows = [*everyone, *valid]
    model = regression(C=best, max_iter=300)
    model.fit(features(all_rows), [r.label for r in all_rows])
    return hits(list(map(str, model.predict(features(desk.test)))), desk.test)


def _valid(desk: Desk) -> list[redhost.Row]:
    return [r for rows in desk.parts.values() for r in rows.valid]


def _rows(desk: Desk, given: Sequence[redhost.Row]) -> ExpertRows:
    return ExpertRows(h=desk.h(given), z=desk.z(given), answers=[r.label for r in given])


MONOLITHS: dict[str, tuple[str, Callable[[Desk], list[float]]]] = {
    "ridge": ("one linear head, closed form, pooled rows", ridge),
    "logistic": ("one logistic regression, pooled rows", logistic),
    "residual": ("one residual head of the experts' summed rank, pooled rows", residual_head),
    "words": ("logistic regression on tf-idf of whole texts, no encoder, pooled rows", words),
}
