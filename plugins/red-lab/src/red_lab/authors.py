"""Authors who train separately on one backbone, through the product: shared by studies of text."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import redhost_author
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.training.context import AuthoringContext
from redhost_author.training.data import DataSplits

import redhost
from redhost.core.types import BackgroundRow

__all__ = ["Authors", "make_backbone"]


def make_backbone(
    project: Path,
    plan: BackbonePlan,
    *,
    background: Sequence[BackgroundRow] = (),
) -> Path:
    """Make a backbone's package, replacing an earlier one, and return its folder.

    Args:
        project: The project folder.
        plan: The kind of backbone.
        background: Texts that experts learn to leave alone.
    """
    shutil.rmtree(project, ignore_errors=True)
    new_backbone(project, plan, background=background)
    return next((project / "src").iterdir())


@dataclass(frozen=True, kw_only=True)
class Authors:
    """The data that authors share, with their training rows and the test rows.

    Attributes:
        context: The backbone with its norm and background.
        folder: The backbone package's folder.
        learn: Every author's rows.
        test: The test rows.
        work: Folder of packages and features.
    """

    context: AuthoringContext
    folder: Path
    learn: Sequence[redhost.Row]
    test: Sequence[redhost.Row]
    work: Path

    def train(
        self,
        plan: redhost_author.ExpertPlan,
        rows: DataSplits,
        *,
        where: str,
        settings: redhost_author.ExpertSettings,
    ) -> Path:
        """Train an expert alone and package it, like its author; return the package.

        Args:
            plan: The expert's properties.
            rows: Its training rows and the rows of its card.
            where: The folder below `work` that contains its project.
            settings: Training settings.
        """
        project = self.work / where / f"red-expert-{plan.id}"
        shutil.rmtree(project, ignore_errors=True)
        folder = redhost_author.write_project(
            project, kind="expert", package_id=plan.id, summary=plan.id
        )
        redhost_author.train_package(project, plan, rows, context=self.context, settings=settings)
        return folder
