"""Joint answers of several teams' experts, compared with systems without teams, or without experts.

Authors use the public path (`split_rows`, `train_package`); hosts compose with the defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import redhost
from red_lab.authors import Authors, make_backbone
from red_lab.several.corpora import Study, union
from red_lab.text.measure import shuffled
from redhost.core.bus.bus import LayerNorm
from redhost.core.bus.label_set_head import SigmoidHead
from redhost.core.bus.task import Task
from redhost.core.composition.recompose import compose
from redhost.core.training.data import DataSplits
from redhost.core.training.new_backbone import BackbonePlan

__all__ = ["Desk", "apart", "measure", "regression"]

EVERYBODY = "everybody"

INVERSE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
"""C of logistic regression on features of unit variance."""


@dataclass(frozen=True, kw_only=True)
class Desk(Authors):
    """The texts, backbone and authors of one study.

    Attributes:
        study: The texts.
    """

    study: Study

    @classmethod
    def open(cls, study: Study, source: str, *, validation: bool, work: Path) -> Desk:
        """Make the backbone's package and read the rows."""
        folder = make_backbone(
            work / f"red-backbone-{study.task}",
            BackbonePlan(
                id=study.task,
                source=source,
                task=redhost.plugins.Plugins().task(study.task),
                max_tokens=128,
            ),
            background=study.background(),
        )
        return cls(
            study=study,
            context=redhost.authoring.open_for_training(folder, cache=work / "cache"),
            folder=folder,
            learn=study.rows("train", validation),
            test=study.rows("test", validation),
            work=work,
        )

    @property
    def task(self) -> Task:
        """The kind of answers."""
        return self.context.backbone.task

    @cached_property
    def parts(self) -> Mapping[str, DataSplits]:
        """Each team's rows, split as the product splits them."""
        return {t: self.split([r for r in self.learn if r.domain == t]) for t in self.study.teams}

    @cached_property
    def everybody(self) -> DataSplits:
        """The pooled rows, with every team's labels, as one author's."""
        return self.split(union(self.learn))

    @cached_property
    def shown(self) -> DataSplits:
        """The rows of all teams' cards, as one author's."""
        return self.split(union([r for p in self.parts.values() for r in (*p.fit, *p.gate)]))

    def split(self, rows: Sequence[redhost.Row]) -> DataSplits:
        """Split an author's rows."""
        return redhost.authoring.split_rows(rows, task=self.task)

    def author(self, team: str, rows: DataSplits, *, seed: int) -> Path:
        """Train one team's expert, in isolation, and package it; return the package."""
        plan = redhost.authoring.ExpertPlan(id=team, writes="labels")
        settings = redhost.authoring.ExpertSettings(space="labels", seed=seed)
        return self.train(plan, rows, where=f"seed-{seed}", settings=settings)

    def compose(self, folders: Sequence[Path]) -> redhost.ComposedModel:
        """Compose packages as a host does."""
        return compose(self.folder, folders, cache=self.work / "cache").composed


def measure(desk: Desk, *, seed: int) -> dict[str, Any]:
    """Train the experts; return each system's answers to the test rows, and the choices made."""
    texts = [r.text for r in desk.test]
    composed = desk.compose([desk.author(t, p, seed=seed) for t, p in desk.parts.items()])
    answers = composed.answer(texts, each=True)
    return {
        "router": composed.router_kind,
        "answers": {
            "routed": [a.label for a in answers],
            "all": [_together(a) for a in answers],
            "random": [a.label for a in shuffled(composed, seed=seed).answer(texts)],
        },
    }


def apart(desk: Desk, *, seed: int) -> dict[str, list[str]]:
    """Return the answers of one expert trained on pooled rows, or on the cards' rows."""
    texts, found = [r.text for r in desk.test], dict[str, list[str]]()
    for name, rows in ((EVERYBODY, desk.everybody), ("shown", desk.shown)):
        one = desk.compose([desk.author(name, rows, seed=seed)]).answer(texts, each=True)
        found[name] = [(a.by_expert or {})[name].label for a in one]
        if name == EVERYBODY:
            found["everybody routed"] = [a.label for a in one]
    return found


def _together(answer: redhost.Answer) -> str:
    """Return the union of all experts' own answers to a text."""
    own = {y for a in (answer.by_expert or {}).values() for y in a.label.split("|")}
    return "|".join(sorted(own - {"none"})) or "none"


def regression(desk: Desk, rows: DataSplits) -> list[str]:
    """Fit a logistic regression of each label on one author's rows; return its answers.

    Its penalty, and how probabilities are decoded, are fitted on the rows of experts' early
    stopping.
    """
    head = desk.task.head
    labels = sorted(head.labels_in([r.label for r in rows.rows]))
    taught = [*rows.train, *rows.fit, *rows.gate]
    x, y = _features(desk, taught), _targets(desk, taught, labels)
    aside, right = _features(desk, rows.valid), _targets(desk, rows.valid, labels)

    def fitted(inverse: float) -> tuple[float, list[Any]]:
        kind: Any = import_module("sklearn.linear_model").LogisticRegression
        models = [kind(C=inverse, max_iter=300).fit(x, y[:, n]) for n in range(len(labels))]
        p = _probabilities(models, aside).clamp(1e-6, 1 - 1e-6)
        loss = torch.nn.functional.binary_cross_entropy(p, right.double())
        return float(loss), models

    _, models = min((fitted(c) for c in INVERSE), key=lambda pair: pair[0])
    assert isinstance(head, SigmoidHead)  # noqa: S101  (the studies' tasks are sets and spans)
    reads = redhost.Expert(space="labels", labels=labels)
    sizes = [len(desk.context.backbone.unit_rows([r])) for r in rows.valid]
    head.fit(reads, _probabilities(models, aside), right, sizes=sizes)
    p = _probabilities(models, _features(desk, desk.test))
    texts = desk.task.unit.answers(desk.context.backbone.trunk, [r.text for r in desk.test])
    return [a.label for a in texts.predictions(head.fitted_by([reads]), p, labels)]


def _features(desk: Desk, rows: Sequence[redhost.Row]) -> Any:
    """Return the experts' inputs: z of the texts, or of their words, ``(N, D)``."""
    backbone = desk.context.backbone
    norm = LayerNorm(width=backbone.width, eps=backbone.eps)
    return norm(desk.context.encode([r.text for r in rows])).numpy()


def _targets(desk: Desk, rows: Sequence[redhost.Row], labels: Sequence[str]) -> Tensor:
    units = desk.context.backbone.unit_rows(rows)
    return desk.task.head.targets([r.label for r in units], labels)


def _probabilities(models: Sequence[Any], x: Any) -> Tensor:
    return torch.tensor(np.stack([m.predict_proba(x)[:, 1] for m in models], 1)).double()
