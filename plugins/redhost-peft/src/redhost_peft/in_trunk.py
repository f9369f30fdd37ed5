"""Train an expert that acts inside the trunk, with gradients through the upper blocks only.

    loss = task loss(W z' + b, y),  z' = LayerNorm(h')       where it has labels of its own
    loss = task loss(W_c h', y) + λ · mean over background of ‖W_c (h' − h)‖²     else

h' is h under its intervention (`core.backbones.interventions`). The states below its lowest block
are computed once; only the blocks above are run in each step. The head of an adapter is initialised
with the solution on z, so that the blocks need not learn what the frozen ones already provide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from redhost_author.training.expert import ExpertRun, TrainedExpert
from redhost_author.training.recipe import Recipe
from torch import Tensor

from redhost.core.backbones.encoder import BATCH
from redhost.core.backbones.interventions import Intervention
from redhost.core.backbones.interventions.layout import intervention_of
from redhost.core.bus.experts import Expert
from redhost.core.types import Progress, Row
from redhost.registry.errors import UsageError

from .graft import moved_states, states_below


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Texts of equal token length: ids, the states below the expert, h and targets of N rows."""

    ids: Tensor
    states: Tensor | None
    h: Tensor
    targets: Tensor


def train_inside(
    expert: Expert, recipe: Recipe, checkpoint: Path | None, progress: Progress | None
) -> TrainedExpert:
    """Train an expert that changes h, and its head if it has one, on its domain's rows.

    Args:
        expert: The expert, trained in place.
        recipe: Its rows, the frozen backbone, the texts to leave alone if it writes hidden states,
            and how to train; dropout and noise are not applied to states. Without validation rows
            the last epoch is used.
        checkpoint: Written from time to time; training resumes from it if it exists.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If the expert has no labels of its own, and the backbone has no classifier.
    """
    backbone, splits = recipe.backbone, recipe.splits
    acts = intervention_of(expert, backbone)
    assert acts  # noqa: S101  (callers pass experts that act inside the trunk)
    own = expert.writes.own_labels
    if backbone.classifier is None and not own:
        raise UsageError(
            "an expert that writes inside the trunk answers through the backbone's classifier",
            expected="a backbone with labels",
            found=f"{backbone.name!r} without",
        )
    run = _InsideRun(expert, recipe, acts)
    data, held_out = (run.batches(rows) for rows in (splits.train, splits.valid))
    hidden = () if own else [Row(text=t, label="") for t in recipe.others]
    others = run.batches(hidden, answered=False)
    for _ in run.epochs(checkpoint, progress):
        run.train_through(data, others)
        run.remember(run.loss_through(held_out) if held_out else None)
    return run.finish(validated=bool(held_out))


class _InsideRun(ExpertRun):
    """The training of an expert whose gradients pass through the upper blocks."""

    def __init__(self, expert: Expert, recipe: Recipe, acts: Intervention) -> None:
        backbone, rows = recipe.backbone, len(recipe.splits.train)
        super().__init__(expert, recipe.settings, head=backbone.task.head, rows=rows)
        self.acts, self.backbone, self.norm = acts, backbone, recipe.norm
        self.names = expert.labels_among(backbone.labels)

    def batches(self, rows: Sequence[Row], *, answered: bool = True) -> list[_Batch]:
        """Return rows in batches of equal length, with the states below computed once."""
        made, trunk, unit = list[_Batch](), self.backbone.trunk, self.backbone.task.unit
        answers = [r.label for r in rows]

        def targets() -> Tensor:
            return self.head.targets(answers, self.names) if answered else torch.zeros(len(rows))

        for one in unit.passes(trunk, [r.text for r in rows], targets, most=BATCH):
            with torch.no_grad():
                states = states_below(trunk, one.ids, self.acts)
                h = unit.pooled(trunk, trunk.hidden_states(one.ids))
            made.append(_Batch(ids=one.ids, states=states, h=h, targets=one.targets))
        return made

    def train_through(self, data: Sequence[_Batch], others: Sequence[_Batch]) -> None:
        """Take one step for each group of shuffled length batches that has a full batch of rows."""
        chosen = list[_Batch]()
        for n in torch.randperm(len(data), generator=self.generator).tolist():
            chosen.append(data[n])
            if sum(len(b.ids) for b in chosen) >= self.settings.batch:
                self.descend(self._losses(chosen, others))
                chosen = []
        if chosen:
            self.descend(self._losses(chosen, others))

    def _losses(self, chosen: Sequence[_Batch], others: Sequence[_Batch]) -> Iterator[Tensor]:
        """Yield the summands of a step's loss, one graph at a time."""
        rows = sum(len(b.h) for b in chosen)
        for batch in chosen:
            yield self.head.loss(self.logits(batch), batch.targets) * len(batch.h) / rows
        classifier = self.backbone.classifier
        if others and self.settings.off_domain > 0 and classifier is not None:
            other = others[int(torch.randint(len(others), (), generator=self.generator))]
            added = (self.moved(other) - other.h) @ classifier.T
            yield self.settings.off_domain * added.square().sum(-1).mean()

    def loss_through(self, data: Sequence[_Batch]) -> float:
        """Return the mean loss over rows."""
        rows = sum(len(b.h) for b in data)
        with torch.no_grad():
            return sum(
                float(self.head.loss(self.logits(b), b.targets)) * len(b.h) / rows for b in data
            )

    def moved(self, batch: _Batch) -> Tensor:
        """Return h' of the batch's rows ``(N, D)``."""
        trunk = self.backbone.trunk
        moved = moved_states(trunk, batch.ids, self.acts, states=batch.states)
        return self.backbone.task.unit.pooled(trunk, moved)

    def logits(self, batch: _Batch) -> Tensor:
        """Return W z' + b ``(B, L)``, or W_c h' ``(B, C)``."""
        moved, classifier = self.moved(batch), self.backbone.classifier
        if self.expert.writes.own_labels or classifier is None:
            made: Tensor = self.expert(self.norm(moved))
            return made
        return moved @ classifier.T
