"""What a recipe does that depends on the task: by default, for texts with a label or a number.

A unit whose rows are made from something else, such as documents, has a subclass (`Unit.recipe`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from redhost.core.backbones.backbone import Backbone
from redhost.core.bus.experts import Expert, Space
from redhost.core.bus.task import Task
from redhost.core.types import Row
from redhost.registry.errors import UsageError

from ..project import ExpertPlan
from .baseline import refuse_below_constant, refuse_below_constant_set
from .context import AuthoringContext
from .data import DataSplits, split_labelled
from .expert import ExpertRows, ExpertSettings

CANARIES = 8
"""Most vectors in a package's canary."""

Read = Callable[[Sequence[str]], Tensor]
"""Texts → the input of an expert, ``(N, D)``."""


class RecipeState(Protocol):
    """What the steps of a task read of a recipe (`training.recipe.Recipe`)."""

    @property
    def plan(self) -> ExpertPlan:
        """The kind of expert."""
        ...

    @property
    def splits(self) -> DataSplits:
        """The author's rows."""
        ...

    @property
    def context(self) -> AuthoringContext:
        """The backbone with its manifest, background card and feature cache."""
        ...

    @property
    def backbone(self) -> Backbone:
        """The frozen backbone."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels the expert may predict."""
        ...

    def check_card(self) -> None:
        """Check that a card of the kind the author chose can be made."""
        ...

    def features(self, rows: Sequence[Row]) -> ExpertRows:
        """Return the rows as training data of an expert on the bus."""
        ...


class TaskRecipe:
    """The steps from an author's rows to an expert that depend on the task.

    Attributes:
        space: The space an expert writes to if its plan does not set one.
        settings: The settings for everything that the author does not set.
        canary_texts: The number of texts that fill the canary.
    """

    space: ClassVar[Space] = "labels"
    settings: ClassVar[ExpertSettings] = ExpertSettings()
    canary_texts: ClassVar[int] = CANARIES

    def split(self, rows: Sequence[Row], *, valid: Sequence[Row] | None, task: Task) -> DataSplits:
        """Return an author's rows, each in one split (`data.split_rows`).

        Args:
            rows: The author's rows.
            valid: Validation rows of the author's own.
            task: The task of the rows.
        """
        return split_labelled(rows, valid=valid, task=task)

    def scaled(self, settings: ExpertSettings, backbone: Backbone) -> ExpertSettings:  # noqa: ARG002
        """Return settings in the scale of a backbone."""
        return settings

    def check(self, recipe: RecipeState) -> None:
        """Check, before anything is trained, that the plan can be carried out.

        Args:
            recipe: The recipe.

        Raises:
            UsageError: If no row is left for a card of rows, or a label cannot be predicted.
        """
        plan, backbone = recipe.plan, recipe.backbone
        recipe.check_card()
        strange = set() if plan.writes == "labels" else {*recipe.labels} - {*backbone.labels}
        if strange:
            raise UsageError(
                f"expert {plan.id!r} writes {plan.writes}, through the backbone's classifier",
                expected=f"labels of backbone {backbone.name!r} ({len(backbone.labels)} of them)",
                found=", ".join(sorted(strange)[:5]),
                hint='Set writes = "labels" in the project\'s pyproject.toml.',
            )

    def data_lines(self, splits: DataSplits) -> list[str]:
        """Return the rows the expert learnt from as lines, for the digest of its data."""
        return [f"{r.text}\t{r.label}" for r in (*splits.train, *splits.valid)]

    def metrics(self, recipe: RecipeState, expert: Expert, read: Read) -> dict[str, float]:
        """Return the share of correct rows by split; for numbers also the MAE.

        For labels it also contains the macro F1 over all rows that were not trained on, and for
        label sets the micro F1.

        Args:
            recipe: The recipe, with the splits.
            expert: The expert as it is on the bus.
            read: Texts → the expert's bus input.
        """
        backbone, splits, metrics = recipe.backbone, recipe.splits, dict[str, float]()
        names, head = expert.labels_among(backbone.labels), backbone.task.head.fitted_by([expert])
        pairs = list[tuple[str, str]]()
        for name, rows in (("train", splits.train), ("valid", splits.valid), ("gate", splits.gate)):
            if not rows:
                continue
            texts = [r.text for r in rows]
            h, z = recipe.context.encode(texts), read(texts)
            with torch.inference_mode():
                logits = expert.logits(h, z, backbone.classifier)
            output = head.output(logits, temperature=expert.temperature)
            metrics[name] = float(head.right(output, backbone.unit_rows(rows), names).mean())
            if (error := head.error(output, rows)) is not None:
                metrics[f"{name}_mae"] = float(error.mean())
            if head.scorer is not None and name != "train":
                read_as = backbone.task.unit.answers(backbone.trunk, texts)
                given = [a.label for a in read_as.predictions(head, output, names)]
                pairs += zip((r.label for r in rows), given, strict=True)
        if pairs and head.scorer is not None:
            scores = head.scorer(pairs)
            micro = {} if scores.micro_f1 is None else {"micro_f1": scores.micro_f1}
            metrics |= {"macro_f1": scores.macro_f1, **micro}
        return metrics

    def refuse_wreck(self, recipe: RecipeState, metrics: Mapping[str, float]) -> None:
        """Refuse an expert that is worse on held-out rows than a constant answer.

        Args:
            recipe: The recipe, with the splits.
            metrics: What `metrics` returned.

        Raises:
            HarmError: If it is.
        """
        held_out = {"valid": recipe.splits.valid, "gate": recipe.splits.gate}
        held_out = {name: part for name, part in held_out.items() if name in metrics}
        rows, numbers = [r for rows in held_out.values() for r in rows], "train_mae" in metrics
        if "micro_f1" in metrics:
            subject = f"expert {recipe.plan.id!r}"
            refuse_below_constant_set(
                subject, metrics["micro_f1"], rows, taught=recipe.splits.train
            )
            return
        kind = "_mae" if numbers else ""
        total = sum(metrics[f"{name}{kind}"] * len(part) for name, part in held_out.items() if part)
        refuse_below_constant(
            f"expert {recipe.plan.id!r}",
            total / max(len(rows), 1),
            rows,
            taught=recipe.splits.train,
            numbers=numbers,
        )


def recipe_of(task: Task) -> TaskRecipe:
    """Return the steps of a task."""
    recipe: TaskRecipe | None = task.unit.recipe
    return recipe or TaskRecipe()
