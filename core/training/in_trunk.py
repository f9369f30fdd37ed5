"""Train an expert that acts inside the trunk, with gradients through the upper blocks only.

    loss = task loss(W z' + b, y),  z' = LayerNorm(h')       where it has labels of its own
    loss = task loss(W_c h', y) + λ · mean over background of ‖W_c (h' − h)‖²     else

h' is h under its intervention (`core.backbones.interventions`). The states below its lowest block
are computed once; only the blocks above are run in each step. The head of an adapter is initialised
with the solution on z, so that the blocks need not learn what the frozen ones already provide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path

import torch
from torch import Tensor

from ...registry.errors import UsageError
from ..backbones.backbone import Backbone
from ..backbones.encoder import BATCH
from ..backbones.interventions import Intervention
from ..backbones.interventions.graft import moved_by, moved_states, states_below
from ..backbones.interventions.layout import intervention_of
from ..backbones.tokens import start_of, tokenize
from ..bus.experts import Expert
from ..bus.tasks import Unit
from ..types import Progress, Row
from .expert import ExpertRun, ExpertSettings, TrainedExpert

TOKENS = 512
"""Most tokens in a batch for text generation, where every token has logits over a vocabulary."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Texts of equal token length: ids, the states below the expert, h and targets of N rows."""

    ids: Tensor
    states: Tensor | None
    h: Tensor
    targets: Tensor


def train_inside(
    expert: Expert,
    rows: Sequence[Row],
    *,
    backbone: Backbone,
    norm: Callable[[Tensor], Tensor],
    settings: ExpertSettings,
    valid: Sequence[Row] = (),
    background: Sequence[str] = (),
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> TrainedExpert:
    """Train an expert that changes h, and its head if it has one, on its domain's rows.

    Args:
        expert: The expert, trained in place.
        rows: The training rows.
        backbone: The frozen backbone.
        norm: The bus norm.
        settings: How to train; dropout and noise are not applied to states.
        valid: Rows for early stopping; without them the last epoch is used.
        background: Texts to leave alone, if the expert writes hidden states.
        checkpoint: Written from time to time; training resumes from it if it exists.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If the expert has no labels of its own, and the backbone has no classifier.
    """
    acts = intervention_of(expert, backbone)
    assert acts  # noqa: S101  (callers pass experts that act inside the trunk)
    own = expert.space == "labels"
    if backbone.classifier is None and not own:
        raise UsageError(
            "an expert that writes inside the trunk answers through the backbone's classifier",
            expected="a backbone with labels",
            found=f"{backbone.name!r} without",
        )
    kind = _TokenRun if backbone.task.unit is Unit.TOKEN else _InsideRun
    run = kind(expert, settings, acts=acts, backbone=backbone, norm=norm, rows=len(rows))
    data, held_out = (run.batches(some) for some in (rows, valid))
    hidden = () if own else [Row(text=t, label="") for t in background]
    others = run.batches(hidden, answered=False)
    for _ in run.epochs(checkpoint, progress):
        run.train_through(data, others)
        run.remember(run.loss_through(held_out) if held_out else None)
    return run.finish(validated=bool(held_out))


class _InsideRun(ExpertRun):
    """The training of an expert whose gradients pass through the upper blocks."""

    def __init__(
        self,
        expert: Expert,
        settings: ExpertSettings,
        *,
        acts: Intervention,
        backbone: Backbone,
        norm: Callable[[Tensor], Tensor],
        rows: int,
    ) -> None:
        super().__init__(expert, settings, head=backbone.task.head, rows=rows)
        self.acts, self.backbone, self.norm = acts, backbone, norm
        own = expert.space == "labels"
        self.names: Sequence[str] = expert.labels if own else backbone.labels

    def batches(self, rows: Sequence[Row], *, answered: bool = True) -> list[_Batch]:
        """Return rows in batches of equal length, with the states below computed once."""
        made, trunk = list[_Batch](), self.backbone.trunk
        answers = [r.label for r in rows]
        targets = self.head.targets(answers, self.names) if answered else torch.zeros(len(rows))
        for index, ids in trunk.batches([r.text for r in rows], most=BATCH):
            ids = ids[: len(index)]  # noqa: PLW2901  (a device other than a CPU gets full batches)
            with torch.no_grad():
                states = states_below(trunk, ids, self.acts)
                h = trunk.pool(trunk.hidden_states(ids))
            made.append(_Batch(ids=ids, states=states, h=h, targets=targets[index]))
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
        """Return h' ``(B, D)``."""
        return moved_by(self.backbone.trunk, batch.ids, self.acts, states=batch.states)

    def logits(self, batch: _Batch) -> Tensor:
        """Return W z' + b ``(B, L)``, or W_c h' ``(B, C)``."""
        moved, classifier = self.moved(batch), self.backbone.classifier
        if self.expert.space == "labels" or classifier is None:
            made: Tensor = self.expert(self.norm(moved))
            return made
        return moved @ classifier.T


class _TokenRun(_InsideRun):
    """The training for text generation, where every token is a row."""

    def batches(self, rows: Sequence[Row], *, answered: bool = True) -> list[_Batch]:  # noqa: ARG002
        """Return passages in batches of equal length, with the states below computed once."""
        made, trunk = list[_Batch](), self.backbone.trunk
        start = start_of(trunk)
        tokens = sorted(([start, *tokenize(trunk, r.text)] for r in rows), key=len)
        for length, same in groupby(tokens, key=len):
            most = max(1, TOKENS // length)
            while some := list(islice(same, most)):
                whole = torch.tensor(some, device=trunk.device)
                ids = whole[:, :-1]
                with torch.no_grad():
                    states = states_below(trunk, ids, self.acts)
                    h = trunk.hidden_states(ids).flatten(0, 1)
                made.append(_Batch(ids=ids, states=states, h=h, targets=whole[:, 1:].flatten()))
        return made

    def moved(self, batch: _Batch) -> Tensor:
        """Return h' ``(N, D)`` of every token."""
        trunk = self.backbone.trunk
        return moved_states(trunk, batch.ids, self.acts, states=batch.states).flatten(0, 1)
