"""Recipes: the steps from rows to a package, which depend on the backbone's task and the form.

What depends on the task is in `task_recipe`; the recipes of a plugin's form are the plugin's
(`redhost_register_recipes`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Self

import msgspec
import torch
from torch import Tensor

from redhost.core.backbones.backbone import Backbone
from redhost.core.backbones.interventions.layout import bus_part
from redhost.core.bus.bus import LayerNorm
from redhost.core.bus.experts import Expert
from redhost.core.bus.head import HeldOut
from redhost.core.model.verify import measure_off_domain
from redhost.core.routers.domain_statistics import Statistics
from redhost.core.types import Progress, Row
from redhost.registry.errors import UsageError
from redhost.registry.package.forms import SPACES
from redhost.registry.package.manifest import BackboneRef, ExpertManifest, Noise, Training
from redhost_author.versions import library_versions

from ..project import ExpertPlan, check_noise
from .context import AuthoringContext
from .data import DataSplits
from .expert import (
    ExpertRows,
    ExpertSettings,
    TrainedExpert,
    train_expert,
)
from .packaging import CardFile, ExpertDraft, statistics_card, texts_card, vectors_card
from .solving import Solver, solver_of
from .task_recipe import CANARIES, Read, TaskRecipe, recipe_of


@dataclass(frozen=True, kw_only=True)
class TrainedProject:
    """The result of training a project's expert.

    Attributes:
        manifest: The manifest of the package that was written.
        splits: The split of each row.
        cuts: For each row, the limit at which its tokens were cut; None if all were read.
    """

    manifest: ExpertManifest
    splits: DataSplits
    cuts: tuple[int | None, ...]


def cuts_of(backbone: Backbone, rows: Sequence[Row]) -> tuple[int | None, ...]:
    """Return, for each row, the limit at which its tokens are cut; None if all are read.

    It is empty where texts are continued: their passages are made to fit.
    """
    generates = backbone.task.unit.generates
    return () if generates else tuple(backbone.cuts([r.text for r in rows]))


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """The steps from an author's rows to an expert's package.

    Attributes:
        plan: The kind of expert; `writes` is set.
        splits: The author's rows.
        context: The backbone with its manifest, background card and feature cache.
        settings: How to train.
    """

    plan: ExpertPlan
    splits: DataSplits
    context: AuthoringContext
    settings: ExpertSettings

    settings_by_default: ClassVar[ExpertSettings | None] = None
    """The settings for everything that the author does not set; None for those of the task."""

    @classmethod
    def default_settings(cls, backbone: Backbone) -> ExpertSettings:
        """Return the settings for everything that the author does not set."""
        by_task = recipe_of(backbone.task)
        return by_task.scaled(cls.settings_by_default or by_task.settings, backbone)

    @property
    def by_task(self) -> TaskRecipe:
        """The steps that depend on the task."""
        return recipe_of(self.backbone.task)

    def check(self) -> None:
        """Check, before anything is trained, that the plan can be carried out.

        Raises:
            UsageError: If it cannot.
        """
        self.by_task.check(self)

    def check_card(self) -> None:
        """Check that a card of the kind the author chose can be made.

        Raises:
            UsageError: If the kind cannot represent the task's answers, or no row is left for it.
        """
        plan, head = self.plan, self.backbone.task.head
        if plan.card in {"texts", "vectors"} and not self.splits.fit:
            raise UsageError(
                f"expert {plan.id!r} has too few rows for a card of {plan.card}",
                expected="texts to set aside, beyond one for each label",
                found=f"{len(self.splits.train)} rows and none to set aside",
                hint="Bring more rows: a quarter of them goes to the card.",
            )
        if plan.card not in head.cards:
            raise UsageError(
                f"expert {plan.id!r} cannot ship a card of {plan.card}",
                expected=", or ".join(head.cards),
                found=str(plan.card),
                hint=f"Its answers are {head.noun}, which that card cannot show.",
            )
        if plan.epsilon is None:
            return
        check_noise(plan)
        if not self.context.background:
            raise UsageError(
                f"expert {plan.id!r} has an epsilon: its canary may show none of your rows",
                expected="a backbone with a background card, whose texts it can show",
                found=f"backbone {self.backbone.name!r} without one",
            )

    @property
    def backbone(self) -> Backbone:
        """The frozen backbone."""
        return self.context.backbone

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels the expert may predict, in the backbone's order if it shares them."""
        answered = self.backbone.task.head.labels_in([r.label for r in self.splits.rows])
        shared = () if self.plan.writes == "labels" else self.backbone.labels
        return (*(y for y in shared if y in answered), *sorted(answered - {*shared}))

    @cached_property
    def others(self) -> list[str]:
        """The background texts that the expert should leave alone: all but its own domain's.

        Empty where it is not known that the rows of these texts have no label (`Unit.silence`).
        """
        if not self.backbone.task.unit.silence:
            return []
        return [r.text for r in self.context.background if r.domain != self.plan.id]

    @cached_property
    def norm(self) -> LayerNorm:
        """The bus norm."""
        return LayerNorm(width=self.backbone.width, eps=self.backbone.eps)

    def read(self, texts: Sequence[str]) -> Tensor:
        """Return the expert's input for texts ``(N, D)``."""
        z: Tensor = self.norm(self.context.encode(texts))
        return z

    @classmethod
    def opened(cls, plan: ExpertPlan, splits: DataSplits, context: AuthoringContext) -> ExpertPlan:  # noqa: ARG003
        """Return the plan with defaults for everything its author did not set."""
        task = context.backbone.task
        space = plan.writes or recipe_of(task).space
        card = plan.card or (task.head.card if SPACES[space].own_labels else "texts")
        return msgspec.structs.replace(plan, writes=space, card=card)

    def prepared(self, checkpoint: Path | None, progress: Progress | None) -> Self:  # noqa: ARG002
        """Return the recipe after training that has to precede its expert; here there is none."""
        return self

    def train(self, checkpoint: Path | None, progress: Progress | None) -> TrainedExpert:
        """Train the expert: on the bus; plugins train inside the blocks."""
        trained = self._train_on_bus(checkpoint, progress)
        expert, head = trained.expert, self.backbone.task.head
        if expert.writes.own_labels:
            read = partial(self._held_out, expert)
            head.calibrate(expert, read, fit=self.splits.fit, gate=self.splits.gate)
        return trained

    def _held_out(self, expert: Expert, rows: Sequence[Row]) -> HeldOut:
        """Return the expert's logits on rows, and their targets."""
        with torch.inference_mode():
            logits = expert(self.read(_texts(rows)))
        by_text = [self.backbone.unit_rows([row]) for row in rows]
        labels = [row.label for units in by_text for row in units]
        return HeldOut(
            logits=logits,
            targets=self.backbone.task.head.targets(labels, expert.labels),
            sizes=tuple(map(len, by_text)),
        )

    def _train_on_bus(self, checkpoint: Path | None, progress: Progress | None) -> TrainedExpert:
        """Solve a linear head if the plan allows it; use another form only if that is better.

        The linear head is then solved again with the validation rows: it needs no early stopping.
        """
        plan, train, valid = self.plan, self.splits.train, self.splits.valid
        open_form = plan.form is None and plan.rank is None
        linear = (plan.form == "linear" or open_form) and plan.writes == "labels"
        if not linear or solver_of(self.backbone.task.head) is None:
            return self._descend(checkpoint, progress)
        hits = dict[str, Tensor]()
        if plan.form is None and len(valid) > 1:  # one row cannot distinguish forms
            hits["linear"] = self._hits(self.solved(train, self.read))
            settings = replace(self.settings, rival=float(hits["linear"].mean()))
            trained = replace(self, settings=settings)._descend(checkpoint, progress)
            hits["residual"] = self._hits(trained)
            better = self._by_text(hits["residual"] - hits["linear"])
            chance = float(better.std()) / len(valid) ** 0.5  # the standard error of the mean
            if float(better.mean()) > chance:
                return replace(trained, compared=_means(hits))
        solved = self.solved((*train, *valid), self.read)
        return replace(solved, compared=_means(hits), learnt_all=bool(valid))

    def solved(self, rows: Sequence[Row], read: Read) -> TrainedExpert:
        """Return a linear head over the expert's own labels, solved from rows.

        Args:
            rows: The rows.
            read: Texts → the head's input.

        Raises:
            UsageError: If the task's answers have no such head.
        """
        answers = [r.label for r in self.backbone.unit_rows(rows)]
        solve = self.require_solver()
        return solve(read(_texts(rows)), answers, self.labels, lambda: read(self.others))

    def require_solver(self) -> Solver:
        """Return how a linear head of the task is solved.

        Raises:
            UsageError: If it cannot be.
        """
        head = self.backbone.task.head
        if (solver := solver_of(head)) is None:
            raise UsageError(
                f"expert {self.plan.id!r} needs a head for {head.noun}",
                expected="a backbone that answers them",
                found=f"{self.backbone.name!r} without a classifier",
            )
        return solver

    def _hits(self, trained: TrainedExpert) -> Tensor:
        """Return which validation rows are answered correctly, ``(N,)`` of 0 and 1."""
        valid, head = self.splits.valid, self.backbone.task.head
        output = head.output(trained.expert(self.read(_texts(valid))))
        return head.right(output, self.backbone.unit_rows(valid), self.labels)

    def _by_text(self, values: Tensor) -> Tensor:
        """Return the mean by validation text ``(N,)``: words of a text are not independent."""
        sizes = [len(self.backbone.unit_rows([row])) for row in self.splits.valid]
        return torch.stack([part.mean() for part in torch.split(values, sizes)])

    def _descend(self, checkpoint: Path | None, progress: Progress | None) -> TrainedExpert:
        return train_expert(
            self.features(self.splits.train),
            self.backbone,
            labels=self.labels,
            settings=self.settings,
            valid=self.features(self.splits.valid) if self.splits.valid else None,
            background=self.read(self.others) if self.others else None,
            checkpoint=checkpoint,
            progress=progress,
        )

    def features(self, rows: Sequence[Row]) -> ExpertRows:
        """Return the rows as training data of an expert on the bus."""
        texts = _texts(rows)
        h = self.context.encode(texts)
        return ExpertRows(
            h=h,
            z=self.norm(h),
            answers=[r.label for r in self.backbone.unit_rows(rows)],
        )

    def draft(self, trained: TrainedExpert) -> ExpertDraft:
        """Return the draft of the trained expert's package."""
        plan, backbone, manifest = self.plan, self.backbone, self.context.manifest
        part, read = bus_part(trained.expert, backbone), self.bus_reader(trained.expert)
        return ExpertDraft(
            expert=trained.expert,
            card=self.card(),
            canary=self.read(self.canary_rows)[:CANARIES],
            id=plan.id,
            backbone=BackboneRef(name=manifest.id, fingerprint=manifest.fingerprint),
            reads_tap=plan.reads_tap,
            writes_tap=plan.writes_tap,
            vocabulary=manifest.tokenizer if backbone.task.unit.generates else None,
            off_domain=measure_off_domain(
                part, plan.id, backbone, self.context.background, read=read
            ),
            domain=plan.domain or backbone.task.head.domain.format(n=len(self.labels)),
            training=Training(
                data=hashlib.sha256(
                    "\n".join(self.by_task.data_lines(self.splits)).encode()
                ).hexdigest(),
                seed=self.settings.seed,
                epochs=trained.epoch,
                metrics={**self._metrics(trained, part, read), **trained.compared},
                versions=library_versions(),
            ),
            license=plan.license,
            question=plan.question,
        )

    def _metrics(self, trained: TrainedExpert, part: Expert, read: Read) -> dict[str, float]:
        """Return the metrics by the splits that the expert has really learnt from."""
        splits, recipe = self.splits, self
        if trained.learnt_all:
            learnt = replace(splits, train=(*splits.train, *splits.valid), valid=())
            recipe = replace(self, splits=learnt)
        return self.by_task.metrics(recipe, part, read)

    def bus_reader(self, expert: Expert) -> Read:  # noqa: ARG002
        """Return a function from texts to the expert's input as it is on the bus."""
        return self.read

    def card(self) -> CardFile:
        """Return a card of the kind the author chose."""
        plan, splits, context = self.plan, self.splits, self.context
        if plan.card == "none":
            return CardFile(kind="none")
        if plan.card == "texts":
            return texts_card(splits.card_rows)
        # Sums over many rows reveal no single row; they must not include the gate rows.
        rows, head = splits.summed, context.backbone.task.head
        if plan.card == "statistics":
            rows = splits.rows
        z = self.norm(context.encode(_texts(rows)))
        groups = head.groups([r.label for r in rows])
        if plan.card == "statistics":
            background = [r.text for r in context.background] if self.noise else []
            public = self.norm(context.encode(background)) if background else None
            return statistics_card(z, groups, labels=self.labels, noise=self.noise, public=public)
        summed = "statistics" in head.cards
        return vectors_card(
            fit_z=self.norm(context.encode(_texts(splits.fit))),
            fit_labels=[r.label for r in splits.fit],
            gate_h=context.encode(_texts(splits.gate)),
            gate_labels=[r.label for r in splits.gate],
            labels=self.labels,
            eps=context.backbone.eps,
            statistics=Statistics.of_rows(z, groups) if summed else None,
            task=context.backbone.task,
        )

    @property
    def noise(self) -> Noise | None:
        """The privacy parameters of the card's sums; None for exact sums."""
        plan = self.plan
        if plan.epsilon is None:
            return None
        clip = math.sqrt(self.backbone.width)  # the length of every z
        return Noise(epsilon=plan.epsilon, delta=plan.delta, clip=clip)

    @property
    def canary_rows(self) -> list[str]:
        """The texts whose vectors are in the canary; public ones if the sums have noise."""
        if self.noise is not None:
            return [r.text for r in self.context.background[: self.by_task.canary_texts]]
        return _texts(self.splits.train[: self.by_task.canary_texts])


def _means(hits: Mapping[str, Tensor]) -> dict[str, float]:
    return {f"valid_{name}": float(right.mean()) for name, right in hits.items()}


def _texts(rows: Sequence[Row]) -> list[str]:
    return [r.text for r in rows]
