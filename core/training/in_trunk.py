"""Train an expert that writes inside the trunk: everything else frozen, gradients through blocks.

    loss = CE(softmax(W_c (h + G(x))), y) + λ · mean over background of ‖W_c G(x)‖²

G is what the expert's step adds to h (`core.backbones.interventions.graft`). The states below the
block it reads are computed once; only the blocks above are run again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...registry.errors import UsageError
from ..backbones.backbone import Backbone
from ..backbones.encoder import BATCH
from ..backbones.interventions import states_with
from ..backbones.interventions.graft import Graft, added_by, token_step
from ..backbones.interventions.tap import Tap, block_at
from ..bus.experts import Expert
from ..types import Progress, Row
from .expert import ExpertRun, ExpertSettings, TrainedExpert, init_expert


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """B rows of one token length: ids, the states below the tap, h and targets."""

    ids: Tensor
    states: Tensor
    h: Tensor
    targets: Tensor


def train_graft(
    rows: Sequence[Row],
    *,
    backbone: Backbone,
    reads: str,
    writes: str,
    settings: ExpertSettings,
    labels: Sequence[str],
    valid: Sequence[Row] = (),
    background: Sequence[str] = (),
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> TrainedExpert:
    """Train a step from block `reads` to block `writes` on its domain's rows.

    Args:
        rows: What it learns.
        backbone: The frozen backbone, with a classifier.
        reads: The block it reads.
        writes: The block it writes to, `reads` or a later one.
        settings: How; dropout and noise are laid on no state.
        labels: The labels the expert may answer.
        valid: Rows to stop early on; without them the last epoch is taken.
        background: Texts to leave alone.
        checkpoint: Written now and then; training goes on from it where it exists.
        progress: Called with (epochs done, epochs in all).
    """
    width, head = backbone.width, backbone.task.head
    expert = init_expert(settings, width=width, out=width, labels=labels)
    run = _GraftRun(expert, settings, backbone=backbone, reads=reads, writes=writes, rows=len(rows))
    data, held_out = (
        run.batches([x.text for x in r], head.targets([x.label for x in r], backbone.labels))
        for r in (rows, valid)
    )
    others = run.batches(background, torch.zeros(len(background)))  # no loss reads these targets
    for _ in run.epochs(checkpoint, progress):
        run.train_through(data, others)
        run.remember(run.loss_through(held_out) if held_out else None)
    return run.finish(validated=bool(held_out))


class _GraftRun(ExpertRun):
    """An expert's training whose logits come through the trunk's upper blocks."""

    def __init__(
        self,
        expert: Expert,
        settings: ExpertSettings,
        *,
        backbone: Backbone,
        reads: str,
        writes: str,
        rows: int,
    ) -> None:
        if backbone.classifier is None:
            raise UsageError(
                "an expert that writes inside the trunk answers through the backbone's classifier",
                expected="a backbone with labels",
                found=f"{backbone.name!r} without",
            )
        super().__init__(expert, settings, head=backbone.task.head, rows=rows)
        self.trunk, self.classifier = backbone.trunk, backbone.classifier
        self.graft = Graft(
            read=block_at(self.trunk, reads),
            write=block_at(self.trunk, writes),
            step=token_step(expert, width=backbone.width, eps=backbone.eps),
        )

    def batches(self, texts: Sequence[str], targets: Tensor) -> list[_Batch]:
        """Return texts in batches of one length, with the states below the tap computed once."""
        made = []
        for index, ids in self.trunk.batches(texts, most=BATCH):
            with torch.no_grad():
                states = states_with(self.trunk, ids, Tap(block=self.graft.read))
                h = self.trunk.pool(self.trunk.hidden_states(ids))[: len(index)]
            made.append(_Batch(ids=ids, states=states, h=h, targets=targets[index]))
        return made

    def train_through(self, data: Sequence[_Batch], others: Sequence[_Batch]) -> None:
        """Take one step for as many batches as make up the batch size, in shuffled order."""
        order = torch.randperm(len(data), generator=self.generator).tolist()
        several = max(1, self.settings.batch // BATCH)
        for start in range(0, len(order), several):
            self.descend(self._losses([data[n] for n in order[start : start + several]], others))

    def _losses(self, chosen: Sequence[_Batch], others: Sequence[_Batch]) -> Iterator[Tensor]:
        """Yield what the loss of a step is the sum of, one graph at a time."""
        rows = sum(len(b.h) for b in chosen)
        for batch in chosen:
            yield self.head.loss(self.logits(batch), batch.targets) * len(batch.h) / rows
        if others and self.settings.off_domain > 0:
            n = int(torch.randint(len(others), (), generator=self.generator))
            added = self.added(others[n]) @ self.classifier.T
            yield self.settings.off_domain * added.square().sum(-1).mean()

    def loss_through(self, data: Sequence[_Batch]) -> float:
        """Return the mean loss over rows."""
        rows = sum(len(b.h) for b in data)
        with torch.no_grad():
            return sum(
                float(self.head.loss(self.logits(b), b.targets)) * len(b.h) / rows for b in data
            )

    def added(self, batch: _Batch) -> Tensor:
        """Return G ``(B, D)``."""
        made = added_by(self.trunk, batch.ids, self.graft, states=batch.states)
        return made[: len(batch.h)]

    def logits(self, batch: _Batch) -> Tensor:
        """Return W_c (h + G), ``(B, C)``."""
        return (batch.h + self.added(batch)) @ self.classifier.T
