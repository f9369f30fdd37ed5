"""Train an expert that writes inside the trunk: everything else frozen, gradients through blocks.

    loss = CE(softmax(W_c (h + G(x))), y) + λ · mean over background of ‖W_c G(x)‖²

G is what the expert's step adds to h (`core.backbones.taps`). The states below the block it reads
are computed once; only the blocks above are run again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ...registry.errors import UsageError
from ..backbones.backbone import Backbone
from ..backbones.graft import token_step
from ..backbones.taps import added_by, block_at, states_at
from ..experts import Expert
from ..progress import Progress
from ..tasks import Units
from .expert_run import ExpertRun, ExpertSettings, TrainedExpert
from .train_expert import init_expert

__all__ = ["GraftRows", "train_graft"]


@dataclass(frozen=True, kw_only=True)
class GraftRows:
    """Texts with their answers."""

    texts: Sequence[str]
    answers: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Rows of one token length: ids and states of a canonical batch, h and targets of B rows."""

    ids: Tensor
    states: Tensor
    h: Tensor
    targets: Tensor


def train_graft(
    rows: GraftRows,
    *,
    backbone: Backbone,
    reads: str,
    writes: str,
    settings: ExpertSettings,
    labels: Sequence[str],
    valid: GraftRows | None = None,
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
    width = backbone.width
    expert = init_expert(settings, width=width, out=width, labels=labels)
    run = _GraftRun(backbone, reads, writes, expert=expert, settings=settings, rows=len(rows.texts))
    data = run.batches(rows)
    judged = run.batches(valid) if valid is not None and len(valid.texts) else []
    others = run.batches(
        GraftRows(texts=background, answers=[backbone.labels[0]] * len(background))
    )
    for _ in run.epochs(checkpoint, progress):
        run.learn(data, others)
        run.weigh(judged)
    return run.done(bool(judged))


class _GraftRun(ExpertRun):
    """An expert's training whose logits come through the trunk's upper blocks."""

    def __init__(
        self,
        backbone: Backbone,
        reads: str,
        writes: str,
        *,
        expert: Expert,
        settings: ExpertSettings,
        rows: int,
    ) -> None:
        steps = settings.epochs * max(1, -(-rows // settings.batch))
        super().__init__(expert, settings, task=backbone.task, steps=steps)
        self.backbone = backbone
        self.read = block_at(backbone.trunk, reads)
        self.write = block_at(backbone.trunk, writes)
        self.add = token_step(expert, width=backbone.width, eps=backbone.eps)

    def batches(self, rows: GraftRows) -> list[_Batch]:
        """Return the rows in canonical batches, with the states below the tap computed once."""
        trunk, made = self.backbone.trunk, []
        targets = self.task.targets(rows.answers, self.backbone.labels)
        for index, ids in trunk.batches(rows.texts):
            with torch.no_grad():
                states = states_at(trunk, ids, block=self.read)
                h = trunk.pool(trunk.hidden(ids))[: len(index)]
            made.append(_Batch(ids=ids, states=states, h=h, targets=targets[index]))
        return made

    def learn(self, data: Sequence[_Batch], others: Sequence[_Batch]) -> None:
        """Take one step for as many batches as make up the batch size, in shuffled order."""
        order = torch.randperm(len(data), generator=self.generator).tolist()
        several = max(1, self.settings.batch // len(data[0].ids))
        for start in range(0, len(order), several):
            chosen = [data[n] for n in order[start : start + several]]
            rows = sum(len(b.h) for b in chosen)
            self.set_rate()
            self.optimizer.zero_grad()
            for batch in chosen:
                loss = self.task.loss(self.logits(batch), batch.targets) * len(batch.h) / rows
                loss.backward()  # type: ignore[no-untyped-call]
            if others and self.settings.off_domain > 0:
                n = int(torch.randint(len(others), (), generator=self.generator))
                added = self.added(others[n]) @ self.classifier().T
                penalty = self.settings.off_domain * added.square().sum(-1).mean()
                penalty.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.step += 1
        self.epoch += 1

    def weigh(self, valid: Sequence[_Batch]) -> None:
        """Remember the weights if they are the best so far; without rows, the latest are."""
        loss = -float(self.epoch)
        if valid:
            with torch.no_grad():
                rows = sum(len(b.h) for b in valid)
                loss = sum(
                    float(self.task.loss(self.logits(b), b.targets)) * len(b.h) / rows
                    for b in valid
                )
        self.remember(loss)

    def added(self, batch: _Batch) -> Tensor:
        """Return G ``(B, D)``."""
        made = added_by(
            self.backbone.trunk,
            batch.ids,
            batch.states,
            read=self.read,
            write=self.write,
            step=self.add,
        )
        return made[: len(batch.h)]

    def logits(self, batch: _Batch) -> Tensor:
        """Return W_c (h + G), ``(B, C)``."""
        return (batch.h + self.added(batch)) @ self.classifier().T

    def classifier(self) -> Tensor:
        """Return W_c ``(C, D)``."""
        if self.backbone.classifier is None:
            raise UsageError(
                "an expert that writes inside the trunk answers through the backbone's classifier",
                expected="a backbone with labels",
                found=f"{self.backbone.name!r} without",
            )
        return self.backbone.classifier

    def done(self, judged: bool) -> TrainedExpert:
        """Return the best expert, frozen."""
        return self.finish(judged, units=Units())
