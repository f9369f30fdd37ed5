"""A tiny backbone of text, and two teams whose texts differ by their words alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import redhost_author
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.training.context import AuthoringContext, open_for_training

import redhost
from redhost.core.types import BackgroundRow
from redhost.testing import tiny_backbone

TEAMS = {
    "fruit": {"apple": ("core", "cider"), "pear": ("stem", "perry")},
    "sport": {"chess": ("rook", "pawn"), "golf": ("tee", "club"), "judo": ("mat", "belt")},
}
"""Team → its labels → words that only texts of the label have."""

FILLERS = ("the", "a", "of", "and", "is", "on", "in", "it", "was", "to")


def texts_of(team: str, count: int, *, seed: int) -> list[redhost.Row]:
    """Return labelled texts: six filler words, and one that says the label."""
    chance, rows = random.Random(f"{team} {seed}"), list[redhost.Row]()
    for n in range(count):
        label = sorted(TEAMS[team])[n % len(TEAMS[team])]
        words = [chance.choice(FILLERS) for _ in range(6)]
        words.insert(chance.randrange(7), chance.choice(TEAMS[team][label]))
        rows.append(redhost.Row(text=" ".join(words), label=label, domain=team))
    return list({r.text: r for r in rows}.values())


def text_package(folder: Path, encoder: Path, **plan_of: Any) -> Path:
    """Return the package of an encoder with the features of a text model."""
    plan = BackbonePlan(
        id="text", source=f"hf:{encoder}", pooling="mean", features="wide", **plan_of
    )
    background = [BackgroundRow(text=f"{a} {b} {c}") for a in "xyz" for b in "uvw" for c in "rst"]
    new_backbone(folder / "red-backbone-text", plan, background=background)
    return next((folder / "red-backbone-text" / "src").iterdir())


@pytest.fixture(scope="session")
def text_backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package of a tiny encoder with random weights and the features of a text model."""
    folder = tmp_path_factory.mktemp("text")
    return text_package(folder, tiny_backbone(folder / "encoder"))


@pytest.fixture(scope="session")
def context(text_backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> AuthoringContext:
    return open_for_training(text_backbone, cache=tmp_path_factory.mktemp("cache"))


Author = Callable[..., Path]


def trained(
    project: Path,
    team: str,
    rows: Sequence[redhost.Row] = (),
    *,
    context: AuthoringContext,
    **plan: Any,
) -> Path:
    """Train a team's expert, and return its package."""
    folder = redhost_author.write_project(project, kind="expert", package_id=team, summary=team)
    redhost_author.train_package(
        project,
        redhost_author.ExpertPlan(**{"id": team, "writes": "labels", "form": "words", **plan}),
        redhost_author.split_rows(rows or texts_of(team, 300, seed=0)),
        context=context,
        settings=redhost_author.ExpertSettings(space="labels"),
    )
    return folder


@pytest.fixture(scope="session")
def author(context: AuthoringContext, tmp_path_factory: pytest.TempPathFactory) -> Author:
    """Train a team's expert, and return its package."""

    def train(team: str, rows: Sequence[redhost.Row] = (), **plan: Any) -> Path:
        project = tmp_path_factory.mktemp(team) / f"red-expert-{team}"
        return trained(project, team, rows, context=context, **plan)

    return train
