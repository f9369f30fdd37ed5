"""The usual training on backbones of text: it decides whether an expert reads words.

It is imported for every expert whose author names no form, and so imports nothing heavy.
"""

from __future__ import annotations

import msgspec
from redhost_author.project import ExpertPlan
from redhost_author.training.context import AuthoringContext
from redhost_author.training.data import DataSplits
from redhost_author.training.recipe import Recipe

from redhost.core.backbones.backbone import Backbone
from redhost.core.bus.task import SoftmaxHead

__all__ = ["OpenRecipe"]


class OpenRecipe(Recipe):
    """The usual steps, unless the expert can read words."""

    @classmethod
    def opened(cls, plan: ExpertPlan, splits: DataSplits, context: AuthoringContext) -> ExpertPlan:
        """Return the plan with defaults for everything its author did not set, its form included.

        Forms are not compared on validation rows: a linear head is the case Wᵤ = 0.
        """
        plan = super().opened(plan, splits, context)
        reads = _may_read_words(plan, context.backbone)
        return msgspec.structs.replace(plan, form="words") if reads else plan


def _may_read_words(plan: ExpertPlan, backbone: Backbone) -> bool:
    """Return whether the plan leaves room for words, and the backbone is one of text.

    That is one which `new-backbone` makes of a text encoder: its h is of several layers. Answers
    have to be labels of the expert's own, and counts have no noise.
    """
    task, text = backbone.task, backbone.trunk.features is not None
    labels = task.unit.whole and isinstance(task.head, SoftmaxHead) and plan.writes == "labels"
    return labels and text and plan.rank is None and plan.epsilon is None
