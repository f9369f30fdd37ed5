"""Authors who train independently on one backbone, through the product's API; shared by studies."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redhost

__all__ = ["Authors", "make_backbone", "train_once"]


def make_backbone(project: Path, name: str, source: str, **options: Any) -> Path:
    """Make a backbone's package from scratch, and return its folder.

    Args:
        project: The project folder.
        name: The backbone's id.
        source: The backbone's source.
        options: Options of `redhost.authoring.new_backbone`.
    """
    shutil.rmtree(project, ignore_errors=True)
    redhost.authoring.new_backbone(project, name, source, **options)
    return next((project / "src").iterdir())


def train_once(
    project: Path,
    plan: redhost.authoring.ExpertPlan,
    rows: redhost.authoring.DataSplits,
    *,
    context: redhost.authoring.AuthoringContext,
    settings: redhost.authoring.ExpertSettings,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Train and package an expert unless it exists; resume an interrupted run. Return the package.

    An expert that learnt nothing is packaged too, to be evaluated with the others.

    Args:
        project: The project's folder.
        plan: The expert's plan.
        rows: Its training rows and card rows.
        context: The backbone and its authoring context.
        settings: Training settings.
        progress: Called with (epochs done, total epochs).
    """
    if (done := next(project.glob("src/*/expert.json"), None)) is not None:
        return done.parent
    folder = redhost.authoring.write_project(
        project, kind="expert", package_id=plan.id, summary=plan.id
    )
    with suppress(redhost.errors.HarmError):
        redhost.authoring.train_package(
            project, plan, rows, context=context, settings=settings, progress=progress
        )
    return folder


@dataclass(frozen=True, kw_only=True)
class Authors:
    """The authors' backbone, and their training and test rows.

    Attributes:
        context: The backbone and its authoring context.
        folder: The backbone package's folder.
        learn: All authors' training rows.
        test: The test rows.
        work: The folder for packages and features.
    """

    context: redhost.authoring.AuthoringContext
    folder: Path
    learn: Sequence[redhost.Row]
    test: Sequence[redhost.Row]
    work: Path

    def train(
        self,
        plan: redhost.authoring.ExpertPlan,
        rows: redhost.authoring.DataSplits,
        *,
        where: str,
        settings: redhost.authoring.ExpertSettings,
    ) -> Path:
        """Train one author's expert, in isolation, and package it; return the package.

        Args:
            plan: The expert's plan.
            rows: Its training rows and card rows.
            where: The folder of its project, below `work`.
            settings: Training settings.
        """
        project = self.work / where / f"red-expert-{plan.id}"
        shutil.rmtree(project, ignore_errors=True)
        folder = redhost.authoring.write_project(
            project, kind="expert", package_id=plan.id, summary=plan.id
        )
        redhost.authoring.train_package(
            project, plan, rows, context=self.context, settings=settings
        )
        return folder
