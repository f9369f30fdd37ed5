"""Train an expert that writes to a block: a graft of a built-in form, as the plan's taps say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from redhost.core.training.expert import TrainedExpert, init_expert
from redhost.core.training.recipe import Recipe
from redhost.core.types import Progress

from .in_trunk import train_inside


@dataclass(frozen=True, kw_only=True, eq=False)
class GraftRecipe(Recipe):
    """The steps from rows to an expert that reads at a block and writes to it or a later one."""

    def _train_on_bus(self, checkpoint: Path | None, progress: Progress | None) -> TrainedExpert:
        """Train it inside the trunk, through the blocks above."""
        width = self.backbone.width
        graft = init_expert(self.settings, width=width, out=width, labels=self.labels)
        graft.reads_tap, graft.writes_tap = self.plan.reads_tap, self.plan.writes_tap
        return train_inside(graft, self, checkpoint, progress)
