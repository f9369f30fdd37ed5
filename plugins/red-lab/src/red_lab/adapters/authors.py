"""Independent authors: a backbone's package, and adapters trained separately from each other.

Finished adapters are not trained again, and interrupted training resumes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from redhost_peft.adapter import TrainedAdapterRecipe

import redhost
from red_lab.adapters import tasks
from red_lab.authors import make_backbone, train_once
from red_lab.newsgroups import encoder
from redhost.core.training.context import AuthoringContext
from redhost.core.training.data import DataSplits
from redhost.core.training.new_backbone import BackbonePlan

__all__ = ["AdapterAuthors", "open_authors"]

TOKENS = 64
"""Maximum number of tokens of a text."""

BLOCKS, RANK, EPOCHS = 2, 8, 3
"""For every adapter: top blocks (of six), R, and the maximum number of epochs."""


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterAuthors:
    """The authors' backbone, rows and packages.

    Attributes:
        context: The backbone and its authoring context.
        folder: The backbone package's folder.
        parts: Each author's rows, split as the product splits them.
        packages: Each author's package.
        work: The folder that holds all of this.
    """

    context: AuthoringContext
    folder: Path
    parts: Mapping[str, DataSplits]
    packages: Mapping[str, Path]
    work: Path


def open_authors(
    work: Path,
    *,
    names: Sequence[str] | None = None,
    epochs: int = EPOCHS,
    learn: int = tasks.LEARN,
    source: Path | None = None,
) -> AdapterAuthors:
    """Make the backbone's package, and train missing adapters.

    Args:
        work: The folder for packages and features.
        names: The tasks; by default all.
        epochs: Maximum number of epochs.
        learn: Maximum number of training rows of a label.
        source: The folder of the sentence encoder; by default that of its package.
    """
    torch.set_num_threads(1)
    folder = _backbone(work, source or encoder())
    context = redhost.authoring.open_for_training(folder, cache=work / "cache")
    given = tasks.rows("train", learn=learn)
    parts = {n: redhost.authoring.split_rows(given[n]) for n in names or tasks.TASKS}
    settings = replace(TrainedAdapterRecipe.settings_by_default, epochs=epochs, rank=RANK)
    packages = {
        name: train_once(
            work / "packages" / f"red-expert-{name}",
            redhost.authoring.ExpertPlan(id=name, form="lora", blocks=BLOCKS),
            rows,
            context=context,
            settings=settings,
        )
        for name, rows in parts.items()
    }
    return AdapterAuthors(context=context, folder=folder, parts=parts, packages=packages, work=work)


def _backbone(work: Path, source: Path) -> Path:
    project = work / "packages" / "red-backbone-minilm"
    if (made := next(project.glob("src/*/backbone.json"), None)) is not None:
        return made.parent
    return make_backbone(
        project,
        BackbonePlan(id="minilm", source=f"hf:{source}", pooling="mean", max_tokens=TOKENS),
        background=tasks.background(),
    )
