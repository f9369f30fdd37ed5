"""Train one expert on rows, everything else frozen: settings, the training loop, checkpoints.

    loss = task loss(logits(h, z), y) + λ · mean over background of ‖W_c Δ(z)‖²

For an expert with labels of its own the last term is ‖Δ(z)‖² or, where a text may have no label,
the loss of predicting none.

Training is deterministic for a seed. Training that was stopped resumes from its checkpoint and
gives a bitwise identical result.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from redhost.core.adamw import AdamW
from redhost.core.batching import batched_slices
from redhost.core.bus.bus import Readout
from redhost.core.bus.evidence import off_domain_norm, readout_factor
from redhost.core.bus.experts import Expert, Space, expert_from_tensors
from redhost.core.bus.head import Head, TargetScaler
from redhost.core.types import Progress, in_stage
from redhost.registry.atomic import read, write_atomic
from redhost.registry.errors import UsageError
from redhost.registry.package.forms import FORMS, SPACES

BACKGROUND_ROWS = 1024
"""Most background rows in a step; there are many where rows are tokens."""

SAVING = 0.05
"""Largest share of the time that is spent on checkpoints: a kill loses at most as much time as
writing twenty checkpoints takes."""

BEHIND = 4
"""Divisor of the patience if an expert, at its smallest loss, is not ahead of its rival: it would
have to become better by more than chance."""


@dataclass(frozen=True, kw_only=True)
class ExpertSettings:
    """How an expert is made and trained; the defaults were chosen on validation rows of text.

    Attributes:
        form: ``residual``, ``mlp`` or ``linear``.
        space: The space it writes to.
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
        rival: Validation accuracy of an alternative; an expert that is not ahead of it gets less
            patience (`BEHIND`).
        half: Whether the classifier's product is computed in bfloat16. With a vocabulary it takes
            most of the time, and some processors are several times as fast in bfloat16.
        seed: Seed of initial weights, order of rows, dropout and noise.
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
    rival: float | None = None
    half: bool = False
    seed: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedExpert:
    """A frozen expert, and how it was trained.

    Attributes:
        expert: The expert.
        epoch: The epoch of its weights; 0 if it was solved in closed form.
        loss: Its loss on the validation rows, or its leave-one-out loss.
        compared: Accuracy on the validation rows by form, if it was chosen among several.
        learnt_all: Whether the validation rows were learnt from afterwards.
    """

    expert: Expert
    epoch: int
    loss: float | None
    compared: Mapping[str, float] = field(default_factory=dict)
    learnt_all: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertRows:
    """Features with their answers.

    Attributes:
        h: Features ``(N, D)``.
        z: The expert's input ``(N, D)``: LayerNorm(h), or what it reads at its tap.
        answers: N of them.
    """

    h: Tensor
    z: Tensor
    answers: Sequence[str]


def train_expert(
    rows: ExpertRows,
    readout: Readout,
    *,
    labels: Sequence[str],
    settings: ExpertSettings,
    valid: ExpertRows | None = None,
    background: Tensor | None = None,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
) -> TrainedExpert:
    """Train an expert on its domain's rows.

    Args:
        rows: The training rows.
        readout: The frozen classifier, its labels, and the task: usually the backbone. A classifier
            is not needed for labels of its own; a number is learnt in units of the targets' spread.
        labels: The labels the expert may predict, in the order of its own logits.
        settings: How to train.
        valid: Rows for early stopping; without them the last epoch is used.
        background: The expert's input for texts to leave alone, ``(M, D)``.
        checkpoint: Written from time to time; training resumes from it if it exists.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If the label of a row is not among the possible labels.
    """
    head, width, writes = readout.task.head, rows.h.shape[1], SPACES[settings.space]
    classifier, names = readout.classifier, labels if writes.own_labels else readout.labels
    out = writes.width(hidden=width, labels=len(labels), classes=len(readout.labels))
    expert = init_expert(settings, width=width, out=out, labels=labels)
    run = ExpertRun(expert, settings, head=head, rows=len(rows.h))
    units = head.units(
        head.targets(rows.answers, names), classifier=None if writes.own_labels else classifier
    )
    if classifier is not None:
        classifier = classifier * (units.hidden / units.scale)
    product = classifier.bfloat16() if settings.half and classifier is not None else classifier
    data = _batch(rows, names, head=head, units=units)
    held_out = None if valid is None else _batch(valid, names, head=head, units=units)
    factor = None if background is None else readout_factor(classifier)
    for _ in run.epochs(checkpoint, progress):
        run.train_epoch(data, classifier=product, background=background, readout=factor)
        run.remember(*((None,) if held_out is None else run.validate(held_out, classifier)))
    return run.finish(validated=held_out is not None, units=units)


def init_expert(settings: ExpertSettings, *, width: int, out: int, labels: Sequence[str]) -> Expert:
    """Return an untrained expert: V (or W) starts at zero, so it changes nothing.

    Args:
        settings: Form, space, rank, activation and seed.
        width: D.
        out: Output width: D, C or its own number of labels.
        labels: The labels it may predict.

    Raises:
        UsageError: If the form is not one that can be trained here.
    """
    generator = torch.Generator().manual_seed(settings.seed)
    space, rank = settings.space, settings.rank or max(1, width // 4)
    if settings.form not in FORMS:
        raise UsageError(
            f"form {settings.form!r} cannot be trained",
            expected=", ".join(FORMS),
            hint="An adapter has a recipe of its own: 'redhost new-expert NAME --form lora'.",
        )
    shapes = FORMS[settings.form].shapes(space, width=width, rank=rank, out=out)
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    if "U" in tensors:
        tensors["U"] = torch.randn(shapes["U"], generator=generator) / width**0.5
    return expert_from_tensors(tensors, space=space, activation=settings.activation, labels=labels)


@dataclass(frozen=True, eq=False)
class _Batch:
    """Rows in the units of training: h ``(N, D)``, the expert's input ``(N, D)``, N targets."""

    h: Tensor
    z: Tensor
    targets: Tensor


def _batch(rows: ExpertRows, names: Sequence[str], *, head: Head, units: TargetScaler) -> _Batch:
    return _Batch(rows.h / units.hidden, rows.z, units.of(head.targets(rows.answers, names)))


class ExpertRun:
    """The state of a training, which can be saved and resumed in full.

    Args:
        expert: The expert, trained in place.
        settings: How to train.
        head: The task's head.
        rows: The number of training rows.
    """

    def __init__(self, expert: Expert, settings: ExpertSettings, *, head: Head, rows: int) -> None:
        self.expert, self.settings, self.head = expert, settings, head
        self.steps = settings.epochs * max(1, -(-rows // settings.batch))
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.optimizer = AdamW(expert.parameters(), weight_decay=settings.weight_decay)
        self.epoch = self.step = self.best_epoch = 0
        self.best_loss, self.best_accuracy, self.note = math.inf, 0.0, ""
        self.best = {k: v.clone() for k, v in expert.state_dict().items()}

    def epochs(self, checkpoint: Path | None, progress: Progress | None) -> Iterator[None]:
        """Yield for each epoch until all are done, or the patience is exhausted.

        Args:
            checkpoint: Written after the first epoch, then as often as `SAVING` allows; training
                resumes from it if it exists.
            progress: Called with (epochs done, epochs in all).
        """
        if checkpoint is not None and (state := read_checkpoint(checkpoint)) is not None:
            self.load(state)
        enough, due = self.settings.epochs, time.monotonic()
        while self.epoch < enough and self.epoch - self.best_epoch < self.patience:
            self.epoch += 1
            yield
            if checkpoint is not None and (start := time.monotonic()) >= due:
                save_checkpoint(checkpoint, self.state())
                due = time.monotonic() + (time.monotonic() - start) / SAVING
            if (shown := in_stage(progress, "epochs", self.note)) is not None:
                shown(self.epoch, enough)

    @property
    def patience(self) -> int:
        """Epochs without a better validation loss before training stops."""
        rival = self.settings.rival
        behind = rival is not None and self.best_accuracy <= rival
        return max(1, self.settings.patience // BEHIND) if behind else self.settings.patience

    def shuffled(self, count: int) -> tuple[Tensor, ...]:
        """Return batches of row indices, newly shuffled for each epoch."""
        return torch.split(torch.randperm(count, generator=self.generator), self.settings.batch)

    def train_epoch(
        self,
        data: _Batch,
        *,
        classifier: Tensor | None,
        background: Tensor | None,
        readout: Tensor | None,
    ) -> None:
        """Take one step for each batch of a shuffled pass.

        Args:
            data: All rows.
            classifier: W_c ``(C, D)``.
            background: The expert's input for texts to leave alone, ``(M, D)``.
            readout: The factor applied before ‖Δ‖ is measured, see `readout_factor`.
        """
        for rows in self.shuffled(len(data.h)):
            z = _disturb(data.z[rows], self.settings, self.generator)
            batch = _Batch(data.h[rows], z, data.targets[rows])
            folded = self.expert.folded()
            self.descend([self._loss(folded, batch, classifier, background, readout)])

    def _loss(
        self,
        expert: Expert,
        batch: _Batch,
        classifier: Tensor | None,
        background: Tensor | None,
        readout: Tensor | None,
    ) -> Tensor:
        """Return the loss of a batch."""
        loss = self.head.loss(expert.logits(batch.h, batch.z, classifier), batch.targets)
        if background is None or not len(background) or self.settings.off_domain <= 0:
            return loss
        sample = self._some(background)
        if self.expert.writes.own_labels:
            penalty = self.head.silence(expert(sample))
        else:
            penalty = off_domain_norm(expert, sample, readout)
        return loss + self.settings.off_domain * penalty

    def _some(self, background: Tensor) -> Tensor:
        """Return the background, or a random sample of its rows if it is large."""
        if len(background) <= BACKGROUND_ROWS:
            return background
        chosen = torch.randint(len(background), (BACKGROUND_ROWS,), generator=self.generator)
        return background[chosen]

    def descend(self, losses: Iterable[Tensor]) -> None:
        """Take one optimiser step on a sum of losses; only one graph is in memory at a time."""
        decay = 0.5 * (1 + math.cos(math.pi * min(1.0, self.step / self.steps)))
        self.optimizer.zero_grad()
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(self.settings.learning_rate * decay)
        self.step += 1

    def validate(self, data: _Batch, classifier: Tensor | None) -> tuple[float, float | None]:
        """Return mean loss over rows, and accuracy, None unless labels are mutually exclusive."""
        outputs, total, hits = 1 if classifier is None else len(classifier), 0.0, list[Tensor]()
        slices = batched_slices(len(data.h), cost=outputs)
        with torch.inference_mode():
            for batch in slices:
                logits = self.expert.logits(data.h[batch], data.z[batch], classifier)
                targets = data.targets[batch]
                total += float(self.head.loss(logits, targets)) * len(targets)
                if (right := self.head.hits(logits, targets)) is not None:
                    hits.append(right)
        count = len(data.h)
        return total / count, int(torch.cat(hits).sum()) / count if hits else None

    def remember(self, loss: float | None, accuracy: float | None = None) -> None:
        """Store the weights if the loss is the smallest so far, or always without a loss."""
        if accuracy is not None:
            self.note = f"validation accuracy {accuracy:.3f}"
        elif loss is not None:
            self.note = f"validation loss {loss:.3g}"
        loss = -float(self.epoch) if loss is None else loss
        if loss < self.best_loss:
            self.best_loss, self.best_epoch = loss, self.epoch
            self.best_accuracy = accuracy or 0.0
            self.best = {k: v.clone() for k, v in self.expert.state_dict().items()}

    def finish(self, *, validated: bool, units: TargetScaler | None = None) -> TrainedExpert:
        """Return the best expert, frozen, in the units of the data."""
        self.expert.load_state_dict(self.best)
        if units is not None and units != TargetScaler():
            scale = units.hidden if self.expert.writes.states else units.scale
            self.expert.to_units(scale=scale, shift=units.shift)
        expert = self.expert.requires_grad_(False).eval()
        return TrainedExpert(
            expert=expert, epoch=self.best_epoch, loss=self.best_loss if validated else None
        )

    def state(self) -> dict[str, Tensor]:
        """Return the tensors of a checkpoint."""
        state = {f"expert.{k}": v for k, v in self.expert.state_dict().items()}
        state |= {f"best.{k}": v for k, v in self.best.items()}
        for n, (_, moments) in enumerate(self.optimizer.state.items()):
            state |= {f"optimizer.{n}.{k}": v for k, v in moments.items()}
        state["generator"] = self.generator.get_state()
        numbers = [self.epoch, self.step, self.best_epoch, self.best_loss, self.best_accuracy]
        return {**state, "numbers": torch.tensor(numbers, dtype=torch.float64)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Resume from a checkpoint."""

        def under(prefix: str) -> dict[str, Tensor]:
            return {
                k.removeprefix(prefix): v.clone() for k, v in state.items() if k.startswith(prefix)
            }

        self.expert.load_state_dict(under("expert."))
        self.best = under("best.")
        for n, parameter in enumerate(self.expert.parameters()):
            self.optimizer.state[parameter] = under(f"optimizer.{n}.")
        self.generator.set_state(state["generator"])
        *counts, self.best_loss, self.best_accuracy = state["numbers"].tolist()
        self.epoch, self.step, self.best_epoch = map(int, counts)


def _disturb(z: Tensor, settings: ExpertSettings, generator: torch.Generator) -> Tensor:
    """Apply dropout and Gaussian noise to z, seeded."""
    if settings.dropout > 0:
        mask = torch.rand(z.shape, generator=generator) >= settings.dropout
        z = z * mask / (1 - settings.dropout)
    if settings.noise > 0:
        z = z + settings.noise * torch.randn(z.shape, generator=generator)
    return z


def save_checkpoint(path: Path, state: Mapping[str, Tensor]) -> None:
    """Replace a checkpoint atomically; the file ends with a digest."""
    tensors = {k: v.detach().contiguous().clone() for k, v in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    data = safetensors.torch.save(tensors)
    write_atomic(path, data + hashlib.sha256(data).digest())


def read_checkpoint(path: Path) -> dict[str, Tensor] | None:
    """Return the tensors of a checkpoint; None if it is missing or damaged."""
    data = read(path) or b""
    data, digest = data[:-32], data[-32:]
    return safetensors.torch.load(data) if hashlib.sha256(data).digest() == digest else None


@contextmanager
def resuming(
    project: Path, *, resumable: bool, of: tuple[object, ...] = ()
) -> Iterator[Path | None]:
    """Yield the checkpoint's path for a project, or None; delete the file when training is done.

    Args:
        project: The project's folder.
        resumable: Whether to use a checkpoint.
        of: The inputs of the training. A checkpoint of other inputs is deleted, because its weights
            would not be those that the manifest describes.
    """
    if not resumable:
        yield None
        return
    name = hashlib.sha256(repr(of).encode()).hexdigest()[:16]
    checkpoint = project / f".redhost-training-{name}.safetensors"
    for old in project.glob(".redhost-training*.safetensors"):
        if old != checkpoint:
            old.unlink()
    yield checkpoint
    checkpoint.unlink(missing_ok=True)
