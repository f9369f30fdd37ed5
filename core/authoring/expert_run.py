"""One training of an expert: its settings, its loss, and a state that can be written down."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..evidence import off_domain
from ..experts import Expert, Space
from ..pieces import pieces
from ..progress import Progress
from ..tasks import Task, Units
from .checkpoint import load_checkpoint, save_checkpoint

__all__ = [
    "Batch",
    "ExpertRun",
    "ExpertSettings",
    "TrainedExpert",
    "expert_logits",
]

MOST = 1024
"""Background rows that a step looks at, at most: tokens are many."""


@dataclass(frozen=True, kw_only=True)
class ExpertSettings:
    """How an expert is made and trained; the defaults were chosen on validation rows of text.

    Attributes:
        form: ``residual``, ``mlp`` or ``linear``.
        space: Where it writes.
        rank: R of the low-rank forms; by default a quarter of D (seed 001, section 4.5.4).
        activation: σ.
        epochs: Passes over the rows.
        batch: Rows a step.
        learning_rate: Peak of AdamW, decayed to zero along a cosine.
        weight_decay: AdamW's.
        dropout: Share of z's entries dropped while training.
        noise: Standard deviation of Gaussian noise added to z while training.
        off_domain: λ, the weight of the background term.
        patience: Epochs without a better validation loss before training stops.
        half: Whether the classifier's product is computed in bfloat16: a vocabulary's takes most of
            the time, and some processors are several times as fast in it.
        seed: Initial weights, order of rows, dropout and noise.
    """

    form: str = "residual"
    space: Space = "hidden"
    rank: int | None = None
    activation: str = "gelu"
    epochs: int = 200
    batch: int = 128
    learning_rate: float = 1e-3
    weight_decay: float = 1.0
    dropout: float = 0.4
    noise: float = 0.0
    off_domain: float = 0.1
    patience: int = 20
    half: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedExpert:
    """A frozen expert, the epoch it was taken from, and its loss on the validation rows."""

    expert: Expert
    epoch: int
    loss: float | None


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows in the units of training: h ``(N, D)``, what is read ``(N, D)``, and N targets."""

    h: Tensor
    z: Tensor
    targets: Tensor


def expert_logits(expert: Expert, h: Tensor, z: Tensor, classifier: Tensor | None) -> Tensor:
    """Return the logits of one expert at column weight 1, ``(B, C)`` or over its own labels."""
    delta: Tensor = expert(z)
    if expert.space == "labels" or classifier is None:
        return delta
    if expert.space == "hidden":
        return ((h + delta).to(classifier.dtype) @ classifier.T).to(h.dtype)
    return h @ classifier.T + delta


class ExpertRun:
    """The state of a training: all of it can be written down and taken up again."""

    def __init__(self, expert: Expert, settings: ExpertSettings, *, task: Task, steps: int) -> None:
        self.expert, self.settings, self.steps = expert, settings, max(steps, 1)
        self.task = task
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.optimizer = torch.optim.AdamW(
            expert.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
        )
        self.epoch = self.step = self.best_epoch = 0
        self.best_loss = math.inf
        self.best = {k: v.clone() for k, v in expert.state_dict().items()}

    def epochs(self, checkpoint: Path | None, progress: Progress | None) -> Iterator[None]:
        """Yield for each epoch until there are enough, or none was better for a while.

        Args:
            checkpoint: Written after each; where it exists, training goes on from it.
            progress: Called with (epochs done, epochs in all).
        """
        if checkpoint is not None and checkpoint.exists():
            self.load(load_checkpoint(checkpoint))
        enough, patience = self.settings.epochs, self.settings.patience
        while self.epoch < enough and self.epoch - self.best_epoch < patience:
            yield
            if checkpoint is not None:
                save_checkpoint(checkpoint, self.state())
            if progress is not None:
                progress(self.epoch, enough)

    def pass_over(
        self,
        data: Batch,
        *,
        classifier: Tensor | None,
        ear: Tensor | None,
        background: Tensor | None,
    ) -> None:
        """Take one step for each batch of a shuffled pass."""
        order = torch.randperm(len(data.h), generator=self.generator)
        for rows in torch.split(order, self.settings.batch):
            z = _disturb(data.z[rows], self.settings, self.generator)
            logits = expert_logits(self.expert, data.h[rows], z, classifier)
            loss = self.task.loss(logits, data.targets[rows])
            if background is not None and self.settings.off_domain > 0:
                penalty = off_domain(self.expert, self._some(background), ear)
                loss = loss + self.settings.off_domain * penalty
            self.set_rate()
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            self.step += 1
        self.epoch += 1

    def _some(self, background: Tensor) -> Tensor:
        """Return the background, or some rows of a large one."""
        if len(background) <= MOST:
            return background
        return background[torch.randint(len(background), (MOST,), generator=self.generator)]

    def judge(self, valid: Batch | None, *, classifier: Tensor | None) -> None:
        """Remember the weights if they are the best so far; without rows, the latest are."""
        loss = -float(self.epoch)
        if valid is not None:
            loss = self._loss(valid, classifier)
        self.remember(loss)

    def _loss(self, data: Batch, classifier: Tensor | None) -> float:
        """Return the mean loss, a few rows at a time."""
        outputs, total = 1 if classifier is None else len(classifier), 0.0
        with torch.inference_mode():
            for piece in pieces(len(data.h), cost=outputs):
                logits = expert_logits(self.expert, data.h[piece], data.z[piece], classifier)
                targets = data.targets[piece]
                total += float(self.task.loss(logits, targets)) * len(targets)
        return total / len(data.h)

    def set_rate(self) -> None:
        """Set the learning rate of this step."""
        decay = 0.5 * (1 + math.cos(math.pi * min(1.0, self.step / self.steps)))
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate * decay

    def remember(self, loss: float) -> None:
        """Keep the weights if no loss was smaller."""
        if loss < self.best_loss:
            self.best_loss, self.best_epoch = loss, self.epoch
            self.best = {k: v.clone() for k, v in self.expert.state_dict().items()}

    def finish(self, judged: bool, *, units: Units) -> TrainedExpert:
        """Return the best expert, frozen, in the units of the data."""
        self.expert.load_state_dict(self.best)
        if units != Units():
            hidden = self.expert.space == "hidden"
            self.expert.to_units(scale=units.hidden if hidden else units.scale, shift=units.shift)
        expert = self.expert.requires_grad_(False).eval()
        return TrainedExpert(
            expert=expert, epoch=self.best_epoch, loss=self.best_loss if judged else None
        )

    def state(self) -> dict[str, Tensor]:
        """Return everything a checkpoint needs."""
        state = {f"expert.{k}": v for k, v in self.expert.state_dict().items()}
        state |= {f"best.{k}": v for k, v in self.best.items()}
        for n, (_, moments) in enumerate(self.optimizer.state.items()):
            state |= {f"optimizer.{n}.{k}": v for k, v in moments.items()}
        state["generator"] = self.generator.get_state()
        numbers = [self.epoch, self.step, self.best_epoch, self.best_loss]
        return {**state, "numbers": torch.tensor(numbers, dtype=torch.float64)}

    def load(self, state: dict[str, Tensor]) -> None:
        """Go on from a checkpoint."""
        self.expert.load_state_dict(_under(state, "expert."))
        self.best = _under(state, "best.")
        for n, parameter in enumerate(self.expert.parameters()):
            self.optimizer.state[parameter] = _under(state, f"optimizer.{n}.")
        self.generator.set_state(state["generator"])
        epoch, step, best_epoch, best_loss = state["numbers"].tolist()
        self.epoch, self.step, self.best_epoch = int(epoch), int(step), int(best_epoch)
        self.best_loss = best_loss


def _under(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v.clone() for k, v in state.items() if k.startswith(prefix)}


def _disturb(z: Tensor, settings: ExpertSettings, generator: torch.Generator) -> Tensor:
    """Drop and shake entries of z, seeded."""
    if settings.dropout > 0:
        keep = torch.rand(z.shape, generator=generator) >= settings.dropout
        z = z * keep / (1 - settings.dropout)
    if settings.noise > 0:
        z = z + settings.noise * torch.randn(z.shape, generator=generator)
    return z
