"""Every author alone: a backbone's package, and adapters that were trained apart from each other.

What is finished is not trained again, and what was stopped goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import redhost
from red_lab.adapters import tasks
from red_lab.newsgroups import encoder
from redhost.core.training.adapter import TrainedAdapterRecipe

__all__ = ["Authors", "open_authors"]

TOKENS = 64
"""Where texts are cut."""

BLOCKS, RANK, EPOCHS = 2, 8, 3
"""Of every adapter: top blocks of six, R, and passes over its rows at most."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Authors:
    """What the authors work with, and what they made.

    Attributes:
        context: The backbone and what goes with it.
        folder: The backbone package's folder.
        parts: Each author's rows, as the product sets them aside.
        packages: Each author's package.
        work: Where all that lies.
    """

    context: redhost.authoring.AuthoringContext
    folder: Path
    parts: Mapping[str, redhost.authoring.DataSplits]
    packages: Mapping[str, Path]
    work: Path


def open_authors(
    work: Path,
    *,
    names: Sequence[str] | None = None,
    epochs: int = EPOCHS,
    learn: int = tasks.LEARN,
    source: Path | None = None,
) -> Authors:
    """Make the backbone's package, and train what is not trained yet.

    Args:
        work: Where packages and features are kept.
        names: The tasks; by default all.
        epochs: Passes over an author's rows, at most.
        learn: Rows of a label, at most.
        source: The folder of the sentence encoder; by default as its package carries it.
    """
    torch.set_num_threads(1)
    folder = _backbone(work, source or encoder())
    context = redhost.authoring.open_for_training(folder, cache=work / "cache")
    given = tasks.rows("train", learn=learn)
    parts = {n: redhost.authoring.split_rows(given[n]) for n in names or tasks.TASKS}
    settings = replace(TrainedAdapterRecipe.settings_by_default, epochs=epochs, rank=RANK)
    packages = {
        name: _author(work / "packages" / f"red-expert-{name}", name, rows, context, settings)
        for name, rows in parts.items()
    }
    return Authors(context=context, folder=folder, parts=parts, packages=packages, work=work)


def _author(
    project: Path,
    name: str,
    rows: redhost.authoring.DataSplits,
    context: redhost.authoring.AuthoringContext,
    settings: redhost.authoring.ExpertSettings,
) -> Path:
    """Do what one author does, unless it is done; return the package's folder."""
    done = next(project.glob("src/*/expert.json"), None)
    if done is not None:
        return done.parent
    folder = redhost.authoring.write_project(project, kind="expert", package_id=name, summary=name)
    plan = redhost.authoring.ExpertPlan(id=name, form="lora", blocks=BLOCKS)
    with suppress(redhost.errors.HarmError):  # one that learnt nothing is measured with the others
        redhost.authoring.train_package(project, plan, rows, context=context, settings=settings)
    return folder


def _backbone(work: Path, source: Path) -> Path:
    project = work / "packages" / "red-backbone-minilm"
    if (made := next(project.glob("src/*/backbone.json"), None)) is not None:
        return made.parent
    shutil.rmtree(project, ignore_errors=True)
    redhost.authoring.new_backbone(
        project,
        "minilm",
        f"hf:{source}",
        pooling="mean",
        max_tokens=TOKENS,
        background=tasks.background(),
        features="wide",
    )
    return next((project / "src").iterdir())
