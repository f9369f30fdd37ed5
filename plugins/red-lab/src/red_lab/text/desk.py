"""The packages of a study: a backbone, each team's rows, and experts as their authors make them."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import redhost_author
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.training.context import AuthoringContext
from redhost_author.training.data import DataSplits
from torch import Tensor

import redhost
from red_lab.models import ENCODERS
from red_lab.text.corpora import Corpus
from redhost.core.backbones.feature_cache import cached_encode
from redhost.core.bus.bus import LayerNorm
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.prepare import RecomposeInputs, load_parts
from redhost.core.composition.publish import RecomposeResult
from redhost.core.composition.recompose import compose
from redhost.core.composition.select import Selection
from redhost.core.model.build import read_package
from redhost.core.plugins.manager import Plugins
from redhost.core.types import Encode
from redhost.registry.environment.status import check_packages
from redhost.registry.package.discover import from_folder

__all__ = ["Desk", "hits", "inputs_of", "open_desk"]


@dataclass(frozen=True, kw_only=True)
class Desk:
    """The corpus, backbone and authors of one run.

    Attributes:
        corpus: The texts.
        context: The backbone with its norm and background.
        folder: The backbone package's folder.
        learn: Every author's rows.
        test: The test rows.
        work: Folder of packages and features.
    """

    corpus: Corpus
    context: AuthoringContext
    folder: Path
    learn: Sequence[redhost.Row]
    test: Sequence[redhost.Row]
    work: Path

    @cached_property
    def parts(self) -> Mapping[str, DataSplits]:
        """Each author's rows, split as the product splits them."""
        return self.split(self.corpus.teams, self.learn)

    def split(
        self, teams: Mapping[str, Sequence[str]], given: Sequence[redhost.Row]
    ) -> dict[str, DataSplits]:
        """Split rows by the team that has their label, and each team's rows as its author does."""
        return {
            team: redhost_author.split_rows([r for r in given if r.label in labels])
            for team, labels in teams.items()
        }

    def having(self, rows: int | None) -> Desk:
        """Return a copy in which every team has only so many rows; None for all.

        Two rows a label at least: one is set aside for the card.
        """
        chosen = list[redhost.Row]()
        for labels in self.corpus.teams.values():
            chosen += _first(
                [r for r in self.learn if r.label in labels], rows and max(rows, 2 * len(labels))
            )
        return dataclasses.replace(self, learn=chosen)

    def h(self, given: Sequence[redhost.Row]) -> Tensor:
        """Return features ``(N, D)``."""
        return self.context.encode([r.text for r in given])

    def z(self, given: Sequence[redhost.Row]) -> Tensor:
        """Return bus vectors ``(N, D)``."""
        norm = LayerNorm(width=self.context.backbone.width, eps=self.context.backbone.eps)
        vectors: Tensor = norm(self.h(given))
        return vectors

    def author(self, team: str, rows: DataSplits, *, where: str, form: str | None = None) -> Path:
        """Train one team's expert, in isolation, and package it; return the package.

        Args:
            team: The expert's id.
            rows: Its author's rows.
            where: The folder of its project, among packages.
            form: Its form; by default the one that `train-expert` takes.
        """
        plan = redhost_author.ExpertPlan(id=team, writes="labels", card="vectors", form=form)
        settings = redhost_author.ExpertSettings(form=form or "residual", space="labels")
        project = self.work / "packages" / where / f"red-expert-{team}"
        shutil.rmtree(project, ignore_errors=True)
        folder = redhost_author.write_project(project, kind="expert", package_id=team, summary=team)
        redhost_author.train_package(project, plan, rows, context=self.context, settings=settings)
        return folder

    def authors(self, *, where: str, form: str | None = None) -> list[Path]:
        """Train every team's expert; return the packages."""
        return [
            self.author(team, rows, where=f"{self.corpus.name}-{where}", form=form)
            for team, rows in self.parts.items()
        ]

    def compose(self, folders: Sequence[Path], *, kind: str = "auto") -> RecomposeResult:
        """Compose packages as a host does, declining 5 % of the experts' own texts."""
        options = RecomposeOptions(router=kind, decline=0.05)
        return compose(self.folder, folders, options=options, cache=self.work / "cache")

    def reader(self, composed: redhost.ComposedModel) -> Encode:
        """Return a cached function texts → h̃ of a composition, with what its experts read."""
        fingerprint = self.context.manifest.fingerprint
        return cached_encode(composed.backbone, fingerprint, self.work / "cache")


def _first(given: Sequence[redhost.Row], rows: int | None) -> list[redhost.Row]:
    """Return the first rows, taking labels in turn, so that no label is missing."""

    def place(row: redhost.Row) -> str:
        # Authors split rows by the hash of the text alone. In that order, the first rows of a label
        # with many rows would all go to the card, and none to the expert.
        return hashlib.sha256(f"curve {row.text}".encode()).hexdigest()

    by_label: dict[str, list[redhost.Row]] = {}
    for row in sorted(given, key=place):
        by_label.setdefault(row.label, []).append(row)
    turns = [(n, y, row) for y, all_of in by_label.items() for n, row in enumerate(all_of)]
    turns.sort(key=lambda turn: turn[:2])
    return [row for _, _, row in turns[:rows]]


def open_desk(
    corpus: Corpus,
    *,
    encoder: str,
    work: Path,
    validation: bool,
    features: Literal["wide"] | None = "wide",
) -> Desk:
    """Make the backbone's package and read the rows.

    Args:
        corpus: The texts.
        encoder: One of `ENCODERS`.
        work: The folder for packages and features.
        validation: Take both training and test rows from the training rows.
        features: The features that experts read; None for the last states alone.
    """
    frozen = ENCODERS[encoder]
    project = work / "packages" / f"red-backbone-{encoder}-{corpus.name}"
    shutil.rmtree(project, ignore_errors=True)
    plan = BackbonePlan(
        id=encoder,
        source=frozen.source(work),
        pooling="mean",
        max_tokens=frozen.tokens,
        features=features,
    )
    new_backbone(project, plan, background=corpus.background())
    folder = next((project / "src").iterdir())
    return Desk(
        corpus=corpus,
        context=redhost_author.open_for_training(folder, cache=work / "cache"),
        folder=folder,
        learn=corpus.rows("train", validation),
        test=corpus.rows("test", validation),
        work=work,
    )


def inputs_of(desk: Desk, folders: Sequence[Path]) -> RecomposeInputs:
    """Read and check packages as a host does before it composes them."""
    package = from_folder(desk.folder)
    files = read_package(package)
    statuses = check_packages([from_folder(p) for p in folders], backbone=files.manifest)
    return load_parts(
        Selection(package=package, files=files, statuses=statuses),
        plugins=Plugins(),
        cache=desk.work / "cache",
        device="cpu",
    )


def hits(labels: Sequence[str], score: Tensor, rows: Sequence[redhost.Row]) -> list[float]:
    """Return 1 for each row whose label has the highest score in ``(N, Y)``, else 0."""
    best = score.argmax(-1).tolist()
    return [float(labels[k] == r.label) for k, r in zip(best, rows, strict=True)]
