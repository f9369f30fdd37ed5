"""From documents to an expert: rows are passages, and the targets are their tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from redhost_author.training.baseline import HINT
from redhost_author.training.data import DataSplits
from redhost_author.training.expert import ExpertSettings
from redhost_author.training.solving import Solver, solver_of
from redhost_author.training.task_recipe import Read, RecipeState, TaskRecipe

from redhost import Backbone, Expert, Row
from redhost.core.batching import batched_slices
from redhost.core.bus.task import Task
from redhost.registry.errors import HarmError, UsageError
from redhost_generate.documents import split_documents
from redhost_generate.tokens import byte_counts
from redhost_generate.vocabulary_head import VocabularyHead

__all__ = ["GenerationRecipe"]


@solver_of.register
def _(head: VocabularyHead) -> Solver | None:  # noqa: ARG001
    return None


class GenerationRecipe(TaskRecipe):
    """The steps from documents to an expert."""

    space = "hidden"
    # Chosen on validation documents.
    settings = ExpertSettings(
        epochs=12,
        batch=128,
        learning_rate=3e-3,
        weight_decay=0.1,
        dropout=0.1,
        off_domain=0.5,
        patience=3,
    )
    canary_texts = 1  # its tokens give enough vectors

    def split(
        self,
        rows: Sequence[Row],
        *,
        valid: Sequence[Row] | None,
        task: Task,
    ) -> DataSplits:
        """Return the passages of documents, of which each is in one split."""
        return replace(split_documents(rows, valid=valid), task=task)

    def scaled(self, settings: ExpertSettings, backbone: Backbone) -> ExpertSettings:
        """Return the settings with λ divided by the vocabulary, over which ‖W_c Δ‖² is a sum."""
        head = backbone.classifier
        tokens = 1 if head is None else len(head)
        return replace(settings, off_domain=settings.off_domain / tokens)

    def check(self, recipe: RecipeState) -> None:
        """Check, before anything is trained, that the plan is valid for text generation.

        Args:
            recipe: The recipe.

        Raises:
            UsageError: If it is not.
        """
        plan = recipe.plan
        if plan.writes != "hidden" or plan.acts_inside:
            raise UsageError(
                f"expert {plan.id!r} is for a backbone that generates text",
                expected="writes hidden, reads and writes at the end",
                found=f"writes {plan.writes}, taps {plan.reads_tap} and {plan.writes_tap}",
                hint="Correct [tool.redhost.expert] in the project's pyproject.toml.",
            )
        recipe.check_card()

    def data_lines(self, splits: DataSplits) -> list[str]:
        """Return the passages the expert learnt from."""
        return [r.text for r in splits.train]

    def metrics(self, recipe: RecipeState, expert: Expert, read: Read) -> dict[str, float]:
        """Return bits per byte on held-out passages, of the expert and of the backbone alone."""
        if not (rows := (*recipe.splits.valid, *recipe.splits.gate)):
            return {}
        backbone, texts = recipe.backbone, [r.text for r in rows]
        data, reads = recipe.features(rows), read(texts)
        target = backbone.task.head.targets(data.answers)
        size = sum(byte_counts(backbone.trunk, texts))
        head = backbone.classifier
        assert head is not None  # noqa: S101  (a generating backbone has one)
        nats = {"bits_per_byte": 0.0, "backbone_bits_per_byte": 0.0}
        with torch.inference_mode():
            for part in batched_slices(len(target), cost=len(head)):
                h = data.h[part]
                for name, logits in (
                    ("bits_per_byte", expert.logits(h, reads[part], head)),
                    ("backbone_bits_per_byte", h @ head.T),
                ):
                    nats[name] += float(backbone.task.head.loss(logits, target[part])) * len(logits)
        return {name: x / math.log(2) / size for name, x in nats.items()}

    def refuse_wreck(self, recipe: RecipeState, metrics: Mapping[str, float]) -> None:
        """Refuse an expert with more bits per byte on held-out passages than the backbone alone.

        Args:
            recipe: The recipe.
            metrics: What `metrics` returned.

        Raises:
            HarmError: If it has more than two percent more.
        """
        found, alone = (metrics.get(f"{b}bits_per_byte", 0.0) for b in ("", "backbone_"))
        if not found <= 1.02 * alone:
            raise HarmError(
                f"expert {recipe.plan.id!r} has learnt less than nothing on passages set aside",
                expected=f"{alone:.3f} bits per byte, those of the backbone alone",
                found=f"{found:.3f}",
                hint=HINT,
            )
