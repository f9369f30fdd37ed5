"""Authors who train apart on one backbone, as the product has it: what studies of text share."""

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
    """Make a backbone's package anew, and return its folder.

    Args:
        project: The project folder.
        name: The backbone's id.
        source: What it is made of.
        options: Those of `redhost.authoring.new_backbone`.
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
    """Do what one author does, unless it is done; what was stopped goes on. Return the package.

    An expert that learnt nothing is packaged as well, to be judged with the others.

    Args:
        project: The project's folder.
        plan: What the expert is.
        rows: What it learns from, and shows.
        context: The backbone and what goes with it.
        settings: How it trains.
        progress: Called with (epochs done, epochs in all).
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
    """What authors share, and the rows that they learn from and are judged on.

    Attributes:
        context: The backbone and what goes with it.
        folder: The backbone package's folder.
        learn: Every author's rows.
        test: The rows to judge on.
        work: Where packages and features are kept.
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
        """Do what one author does: train an expert alone and package it; return the package.

        Args:
            plan: What it is.
            rows: What it learns from, and shows.
            where: The folder below `work` that its project is in.
            settings: How it trains.
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
