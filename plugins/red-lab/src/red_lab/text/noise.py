"""The cost of noise in cards of sums: the same experts, with increasingly noisy cards."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import redhost
from red_lab.text.desk import Desk, inputs_of
from red_lab.text.measure import domain_right, no_expert
from redhost.core.composition.choose import AUTO
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose_parts
from redhost.core.composition.refusal import accepted
from redhost.core.evaluation.judge import judge
from redhost.core.routers.cards import Card
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.training.private_sums import private_sums
from redhost.registry.package.manifest import Noise

__all__ = ["noise"]

EPSILONS = (None, 10.0, 3.0, 1.0)
"""ε of the cards' sums; None for exact ones."""

DELTA = 1e-5


def noise(desk: Desk) -> list[dict[str, Any]]:
    """Compose solved linear heads whose cards hold sums alone, with one draw of noise for each ε.

    Returns:
        Accuracies on the test rows for each ε.
    """
    settings = redhost.authoring.ExpertSettings(form="linear", space="labels")
    where = f"{desk.corpus.name}-noise"
    inputs = inputs_of(
        desk,
        [
            desk.author(team, rows, where=where, settings=settings)
            for team, rows in desk.parts.items()
        ],
    )
    found = []
    for epsilon in EPSILONS:
        experts = {
            team: dataclasses.replace(expert, card=_sums(desk, team, epsilon))
            for team, expert in inputs.candidates.experts.items()
        }
        candidates = dataclasses.replace(inputs.candidates, experts=experts)
        composed = accepted(
            compose_parts(
                dataclasses.replace(inputs, candidates=candidates),
                RecomposeOptions(router=AUTO),
            )
        ).composed
        alone = no_expert(desk, composed)["no expert, ridge"]
        found.append(
            {
                "epsilon": epsilon,
                "delta": DELTA,
                "routed": float(judge(composed, desk.h(desk.test), desk.test).hits.mean()),
                "domain": domain_right(desk, composed),
                "ridge": sum(alone) / len(alone),
            }
        )
    return found


def _sums(desk: Desk, team: str, epsilon: float | None) -> Card:
    """Return a team's card of sums over all its rows, made by `statistics_card`."""
    rows = desk.parts[team].rows
    z, labels = desk.z(rows), [r.label for r in rows]
    if epsilon is None:
        return Card(column=team, kind="statistics", statistics=Statistics.of_rows(z, labels))
    texts = [redhost.Row(text=r.text, label="") for r in desk.context.background]
    statistics = private_sums(
        z,
        labels,
        Noise(epsilon=epsilon, delta=DELTA, clip=z.shape[1] ** 0.5),
        public=desk.z(texts),
        generator=np.random.default_rng(sorted(desk.parts).index(team)),
    )
    return Card(column=team, kind="statistics", statistics=statistics)
