"""Train one expert alone: its own column at 1, everything else frozen.

    loss = CE(p(y|x), y) + λ · mean over background of ‖logits that Δ adds‖²

with p through the frozen classifier, softmax(W_c (h + Δ(z))), or over labels of the expert's own,
softmax(Δ(z)). The second term teaches the expert to leave other people's inputs alone, which
makes Proposition 3's small residuals (seed 000) true off the expert's domain by training, and
routing errors cheap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..registry.errors import UsageError
from ..registry.forms import FORMS
from .checkpoint import load_checkpoint, save_checkpoint
from .evidence import ear_of
from .experts import Expert, Space, expert_of
from .pieces import pieces
from .tasks import Classification, Task, Units

__all__ = [
    "ExpertRun",
    "ExpertSettings",
    "Rows",
    "TrainedExpert",
    "expert_logits",
    "init_expert",
    "off_domain",
    "train_expert",
]


MOST = 1024
"""Background rows that a step looks at, at most: tokens are many."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Features with their labels: h ``(N, D)`` and N answers.

    `z` ``(N, D)`` is what the expert reads, where that is not LayerNorm(h).
    """

    h: Tensor
    answers: Sequence[str]
    z: Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedExpert:
    """A frozen expert, the epoch it was taken from, and its loss on the validation rows."""

    expert: Expert
    epoch: int
    loss: float | None


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


def init_expert(settings: ExpertSettings, *, width: int, out: int, labels: Sequence[str]) -> Expert:
    """Return an untrained expert: V (or W) starts at zero, so it changes nothing.

    Args:
        settings: Form, space, rank, activation and seed.
        width: D.
        out: Width of what it writes: D, C or its own number of labels.
        labels: The labels it may answer.

    Raises:
        UsageError: If the form is not one that can be trained here.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    space, rank = settings.space, settings.rank or max(1, width // 4)
    if settings.form not in FORMS:
        raise UsageError(f"form {settings.form!r} cannot be trained", expected=", ".join(FORMS))
    shapes = FORMS[settings.form].shapes(space, width=width, rank=rank, out=out)
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    if "U" in tensors:
        tensors["U"] = torch.randn(shapes["U"], generator=generator) / width**0.5
    return expert_of(tensors, space=space, activation=settings.activation, labels=labels)


def expert_logits(expert: Expert, h: Tensor, z: Tensor, classifier: Tensor | None) -> Tensor:
    """Return the logits of one expert at column weight 1, ``(B, C)`` or over its own labels."""
    delta: Tensor = expert(z)
    if expert.space == "labels" or classifier is None:
        return delta
    if expert.space == "hidden":
        return ((h + delta).to(classifier.dtype) @ classifier.T).to(h.dtype)
    return h @ classifier.T + delta


def off_domain(expert: Expert, z: Tensor, classifier: Tensor | None) -> Tensor:
    """Return mean ‖logits that Δ adds‖² over rows ``(B, D)``: W_c Δ(z), or Δ(z) itself.

    Args:
        expert: The expert.
        z: What it reads, ``(B, D)``.
        classifier: W_c ``(C, D)``, or its ear (`core.evidence.ear_of`).
    """
    delta: Tensor = expert(z)
    if expert.space == "hidden" and classifier is not None:
        delta = delta @ classifier.T
    return delta.square().sum(-1).mean()


def train_expert(
    rows: Rows,
    *,
    norm: Callable[[Tensor], Tensor],
    classifier: Tensor | None,
    labels: Sequence[str],
    domain_labels: Sequence[str],
    settings: ExpertSettings,
    task: Task | None = None,
    valid: Rows | None = None,
    background: Tensor | None = None,
    background_z: Tensor | None = None,
    checkpoint: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TrainedExpert:
    """Train an expert on its domain's rows.

    Args:
        rows: What it learns.
        norm: The bus norm, h → z.
        classifier: W_c ``(C, D)``, frozen; not needed for labels of its own.
        labels: The classifier's labels.
        domain_labels: The labels the expert may answer, in the order of its own logits.
        settings: How.
        task: Classes or a number; a number is learnt in units of the targets' spread.
        valid: Rows to stop early on; without them the last epoch is taken.
        background: Features to leave alone, ``(M, D)``.
        background_z: What the expert reads of them, where that is not LayerNorm(h).
        checkpoint: Written now and then; training goes on from it where it exists.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If an answer is not among the labels it can have.
    """
    own, task = settings.space == "labels", task or Classification()
    names = domain_labels if own else labels
    out = rows.h.shape[1] if settings.space == "hidden" else len(names)
    expert = init_expert(settings, width=rows.h.shape[1], out=out, labels=domain_labels)
    steps = settings.epochs * -(-len(rows.h) // settings.batch)
    run = ExpertRun(expert, settings, task=task, steps=steps)
    if checkpoint is not None and checkpoint.exists():
        run.load(load_checkpoint(checkpoint))
    shared = None if own else classifier
    units = task.units(task.targets(rows.answers, names), classifier=shared)
    classifier = None if classifier is None else classifier * (units.hidden / units.scale)
    data = _batch(rows, norm, names, task=task, units=units)
    judged = None if valid is None else _batch(valid, norm, names, task=task, units=units)
    others = None
    if background is not None and len(background):
        others = norm(background) if background_z is None else background_z
    product = classifier.bfloat16() if settings.half and classifier is not None else classifier
    ear = None if others is None else ear_of(classifier)
    while run.epoch < settings.epochs and run.epoch - run.best_epoch < settings.patience:
        run.pass_over(data, classifier=product, ear=ear, background=others)
        run.judge(judged, classifier=classifier)
        if checkpoint is not None:
            save_checkpoint(checkpoint, run.state())
        if progress is not None:
            progress(run.epoch, settings.epochs)
    return run.finish(judged is not None, units=units)


@dataclass(frozen=True)
class _Batch:
    h: Tensor
    z: Tensor
    targets: Tensor


def _batch(
    rows: Rows, norm: Callable[[Tensor], Tensor], names: Sequence[str], *, task: Task, units: Units
) -> _Batch:
    z = norm(rows.h) if rows.z is None else rows.z
    return _Batch(rows.h / units.hidden, z, units.of(task.targets(rows.answers, names)))


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

    def pass_over(
        self,
        data: _Batch,
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

    def judge(self, valid: _Batch | None, *, classifier: Tensor | None) -> None:
        """Remember the weights if they are the best so far; without rows, the latest are."""
        loss = -float(self.epoch)
        if valid is not None:
            loss = self._loss(valid, classifier)
        self.remember(loss)

    def _loss(self, data: _Batch, classifier: Tensor | None) -> float:
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
