"""Train one expert on rows, everything else frozen: settings, the training itself, its checkpoint.

    loss = task loss(logits(h, z), y) + λ · mean over background of ‖W_c Δ(z)‖²

Of labels of its own the last term is ‖Δ(z)‖², or, where a text may have none of them, the loss of
saying so.

A training is deterministic for a seed, and one that was stopped goes on from its checkpoint to the
same bits.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from ...registry.atomic import read, write_atomic
from ...registry.errors import UsageError
from ...registry.package.forms import FORMS
from ..adamw import AdamW
from ..batching import batched_slices
from ..bus.evidence import off_domain_norm, readout_factor
from ..bus.experts import Expert, Space, expert_from_tensors
from ..bus.head import Head, TargetScaler
from ..bus.nested import at_each_rank
from ..bus.tasks import CLASSIFICATION, Task
from ..types import Progress, in_stage

BACKGROUND_ROWS = 1024
"""Background rows that a step looks at, at most: tokens are many."""

SAVING = 0.05
"""Share of the time that checkpoints take, at most: a kill loses no more than the last twenty of
them would have."""

BEHIND = 4
"""An expert that is not ahead of its rival when its loss was smallest waits for a smaller one a
quarter as long: it would have to overtake by more than chance."""

TEMPERATURES = (0.05, 20.0)
"""Smallest and largest T that is fitted."""

HALVINGS = 60
"""Of a search for T: they reach float precision."""

ONE_IN_TWENTY = 3.841
"""What one in twenty draws of χ² with one degree of freedom exceeds."""


@dataclass(frozen=True, kw_only=True)
class ExpertSettings:
    """How an expert is made and trained; the defaults were chosen on validation rows of text.

    Attributes:
        form: ``residual``, ``mlp`` or ``linear``.
        space: Where it writes.
        rank: R of the low-rank forms; by default a quarter of D (seed 001, section 4.5.4).
        ranks: Where its first units are to be experts by themselves: how many, ascending, the last
            is R. The loss is then the mean over these ranks.
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
    ranks: tuple[int, ...] = ()
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
    """A frozen expert, and how it came to be.

    Attributes:
        expert: The expert.
        epoch: The epoch it was taken from; 0 where it was solved.
        loss: Its loss on the validation rows, or on each row left out.
        compared: Accuracy on the validation rows by form, where it was chosen among several.
        learnt_all: Whether it has learnt from the validation rows since.
    """

    expert: Expert
    epoch: int
    loss: float | None
    compared: Mapping[str, float] = field(default_factory=dict)
    learnt_all: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class ExpertRows:
    """Features with their labels: h ``(N, D)`` and N answers.

    `z` ``(N, D)`` is what the expert reads, where that is not LayerNorm(h).
    """

    h: Tensor
    answers: Sequence[str]
    z: Tensor | None = None


def train_expert(
    rows: ExpertRows,
    *,
    norm: Callable[[Tensor], Tensor],
    classifier: Tensor | None,
    labels: Sequence[str],
    domain_labels: Sequence[str],
    settings: ExpertSettings,
    task: Task = CLASSIFICATION,
    valid: ExpertRows | None = None,
    background: Tensor | None = None,
    background_z: Tensor | None = None,
    rival: float | None = None,
    checkpoint: Path | None = None,
    progress: Progress | None = None,
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
        rival: Accuracy on the validation rows of what it is to be better than; one that is not
            ahead of it gets less patience (`BEHIND`).
        checkpoint: Written now and then; training goes on from it where it exists.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If an answer is not among the labels it can have.
    """
    head, own, width = task.head, settings.space == "labels", rows.h.shape[1]
    names = domain_labels if own else labels
    out = width if settings.space == "hidden" else len(names)
    expert = init_expert(settings, width=width, out=out, labels=domain_labels)
    run = ExpertRun(expert, settings, head=head, rows=len(rows.h), rival=rival)
    units = head.units(head.targets(rows.answers, names), classifier=None if own else classifier)
    if classifier is not None:
        classifier = classifier * (units.hidden / units.scale)
    product = classifier.bfloat16() if settings.half and classifier is not None else classifier
    data = _batch(rows, norm, names, head=head, units=units)
    held_out = None if valid is None else _batch(valid, norm, names, head=head, units=units)
    others = None
    if background is not None and len(background):
        others = norm(background) if background_z is None else background_z
    readout = None if others is None else readout_factor(classifier)
    for _ in run.epochs(checkpoint, progress):
        run.train_epoch(data, classifier=product, background=others, readout=readout)
        run.remember(*((None,) if held_out is None else run.validate(held_out, classifier)))
    return run.finish(validated=held_out is not None, units=units)


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
    if settings.ranks:
        rank = settings.ranks[-1]
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


def expert_logits(expert: Expert, h: Tensor, z: Tensor, classifier: Tensor | None) -> Tensor:
    """Return the logits of one expert at column weight 1, ``(B, C)`` or over its own labels."""
    delta: Tensor = expert(z)
    if expert.space == "labels" or classifier is None:
        return delta
    if expert.space == "hidden":
        return ((h + delta).to(classifier.dtype) @ classifier.T).to(h.dtype)
    return h @ classifier.T + delta


@dataclass(frozen=True, eq=False)
class _Batch:
    """Rows in the units of training: h ``(N, D)``, what is read ``(N, D)``, and N targets."""

    h: Tensor
    z: Tensor
    targets: Tensor


def _batch(
    rows: ExpertRows,
    norm: Callable[[Tensor], Tensor],
    names: Sequence[str],
    *,
    head: Head,
    units: TargetScaler,
) -> _Batch:
    z = norm(rows.h) if rows.z is None else rows.z
    return _Batch(rows.h / units.hidden, z, units.of(head.targets(rows.answers, names)))


class ExpertRun:
    """The state of a training: all of it can be written down and taken up again.

    Args:
        expert: What is trained, in place.
        settings: How.
        head: What its answers are.
        rows: How many there are to learn from.
        rival: Accuracy on the validation rows of what it is to be better than, if anything.
    """

    def __init__(
        self,
        expert: Expert,
        settings: ExpertSettings,
        *,
        head: Head,
        rows: int,
        rival: float | None = None,
    ) -> None:
        self.expert, self.settings, self.head, self.rival = expert, settings, head, rival
        self.parts = at_each_rank(expert, settings.ranks)
        self.steps = settings.epochs * max(1, -(-rows // settings.batch))
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.optimizer = AdamW(expert.parameters(), weight_decay=settings.weight_decay)
        self.epoch = self.step = self.best_epoch = 0
        self.best_loss, self.best_accuracy, self.note = math.inf, 0.0, ""
        self.best = {k: v.clone() for k, v in expert.state_dict().items()}

    def epochs(self, checkpoint: Path | None, progress: Progress | None) -> Iterator[None]:
        """Yield for each epoch until there are enough, or none was better for a while.

        Args:
            checkpoint: Written after the first, and then as `SAVING` says; where it exists,
                training goes on from it.
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
        behind = self.rival is not None and self.best_accuracy <= self.rival
        return max(1, self.settings.patience // BEHIND) if behind else self.settings.patience

    def shuffled(self, count: int) -> tuple[Tensor, ...]:
        """Return the indices of so many rows in batches, in an order of this epoch's own."""
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
            background: What is read of texts to leave alone, ``(M, D)``.
            readout: ‖Δ‖ is measured after it, see `readout_factor`.
        """
        for rows in self.shuffled(len(data.h)):
            z = _disturb(data.z[rows], self.settings, self.generator)
            batch = _Batch(data.h[rows], z, data.targets[rows])
            losses = (
                self._loss(x.folded(), batch, classifier, background, readout) for x in self.parts
            )
            self.descend(loss / len(self.parts) for loss in losses)

    def _loss(
        self,
        expert: Expert,
        batch: _Batch,
        classifier: Tensor | None,
        background: Tensor | None,
        readout: Tensor | None,
    ) -> Tensor:
        """Return the loss of a batch, with the expert at one of its ranks."""
        loss = self.head.loss(expert_logits(expert, batch.h, batch.z, classifier), batch.targets)
        if background is None or self.settings.off_domain <= 0:
            return loss
        some = self._some(background)
        if self.expert.space == "labels":
            penalty = self.head.silence(expert(some))
        else:
            penalty = off_domain_norm(expert, some, readout)
        return loss + self.settings.off_domain * penalty

    def _some(self, background: Tensor) -> Tensor:
        """Return the background, or some rows of a large one."""
        if len(background) <= BACKGROUND_ROWS:
            return background
        chosen = torch.randint(len(background), (BACKGROUND_ROWS,), generator=self.generator)
        return background[chosen]

    def descend(self, losses: Iterable[Tensor]) -> None:
        """Take one step down the sum of losses; each frees its graph before the next is made."""
        decay = 0.5 * (1 + math.cos(math.pi * min(1.0, self.step / self.steps)))
        self.optimizer.zero_grad()
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(self.settings.learning_rate * decay)
        self.step += 1

    def validate(self, data: _Batch, classifier: Tensor | None) -> tuple[float, float | None]:
        """Return mean loss and accuracy over rows, a few at a time; of numbers the loss alone.

        Of an expert of several ranks these are means over its ranks.
        """
        outputs, total, hits = 1 if classifier is None else len(classifier), 0.0, 0
        slices = batched_slices(len(data.h), cost=outputs)
        with torch.inference_mode():
            for some, expert in itertools.product(slices, self.parts):
                logits = expert_logits(expert, data.h[some], data.z[some], classifier)
                targets = data.targets[some]
                total += float(self.head.loss(logits, targets)) * len(targets)
                if self.head.distribution:
                    hits += int((logits.argmax(-1) == targets).sum())
        count = len(data.h) * len(self.parts)
        return total / count, hits / count if self.head.distribution else None

    def remember(self, loss: float | None, accuracy: float | None = None) -> None:
        """Remember the weights if no loss was smaller; without a loss, the latest are best."""
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
            hidden = self.expert.space == "hidden"
            self.expert.to_units(scale=units.hidden if hidden else units.scale, shift=units.shift)
        expert = self.expert.requires_grad_(False).eval()
        loss = self.best_loss if validated else None
        return TrainedExpert(expert=expert, epoch=self.best_epoch, loss=loss)

    def state(self) -> dict[str, Tensor]:
        """Return everything a checkpoint needs."""
        state = {f"expert.{k}": v for k, v in self.expert.state_dict().items()}
        state |= {f"best.{k}": v for k, v in self.best.items()}
        for n, (_, moments) in enumerate(self.optimizer.state.items()):
            state |= {f"optimizer.{n}.{k}": v for k, v in moments.items()}
        state["generator"] = self.generator.get_state()
        numbers = [self.epoch, self.step, self.best_epoch, self.best_loss, self.best_accuracy]
        return {**state, "numbers": torch.tensor(numbers, dtype=torch.float64)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint."""

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
    """Drop and shake entries of z, seeded."""
    if settings.dropout > 0:
        mask = torch.rand(z.shape, generator=generator) >= settings.dropout
        z = z * mask / (1 - settings.dropout)
    if settings.noise > 0:
        z = z + settings.noise * torch.randn(z.shape, generator=generator)
    return z


def fit_temperature(logits: Tensor, targets: Tensor, *, head: Head = CLASSIFICATION.head) -> float:
    """Return the T with the smallest loss of logits / T, which is a cross-entropy.

    The loss is convex in 1/T, so a golden-section search over log T finds it.

    Args:
        logits: ``(N, L)``, of rows that were not trained on.
        targets: Theirs, ``(N,)`` for one of L labels, ``(N, L)`` for any number of them.
        head: What answers.

    Returns:
        T, within [0.05, 20].
    """
    ratio = (math.sqrt(5) - 1) / 2
    low, high = (math.log(x) for x in TEMPERATURES)

    def loss(log_t: float) -> float:
        scaled = logits.double() / math.exp(log_t)
        return float(head.loss(scaled, targets))

    with torch.inference_mode():
        for _ in range(HALVINGS):
            a, b = high - ratio * (high - low), low + ratio * (high - low)
            if loss(a) <= loss(b):
                high = b
            else:
                low = a
    return math.exp((low + high) / 2)


def shown_temperature(
    logits: Tensor, targets: Tensor, *, head: Head = CLASSIFICATION.head
) -> float:
    """Return the T nearest to 1 that the rows do not refute: 1 where they do not refute that.

    T is refuted if 2 N (loss at T - smallest loss) is beyond what one case of twenty reaches where
    it is right: the likelihood ratio, χ² of one degree of freedom (Wilks 1938). So rows that are
    few, or all right, move it little, where the likeliest T would be the smallest there is.

    Args:
        logits: ``(N, L)``, of rows that were not trained on.
        targets: Theirs, ``(N,)``.
        head: What answers.

    Returns:
        T, within [0.05, 20].
    """

    def loss(log_t: float) -> float:
        return float(head.loss(logits.double() / math.exp(log_t), targets))

    likeliest = math.log(fit_temperature(logits, targets, head=head))
    most, refuted = loss(likeliest) + ONE_IN_TWENTY / (2 * len(logits)), 0.0
    if loss(refuted) <= most:
        return 1.0
    for _ in range(HALVINGS):
        middle = (likeliest + refuted) / 2
        if loss(middle) <= most:
            likeliest = middle
        else:
            refuted = middle
    return math.exp(likeliest)


def save_checkpoint(path: Path, state: Mapping[str, Tensor]) -> None:
    """Replace a checkpoint by a new one, atomically, with a digest at its end."""
    tensors = {k: v.detach().contiguous().clone() for k, v in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    data = safetensors.torch.save(tensors)
    write_atomic(path, data + hashlib.sha256(data).digest())


def read_checkpoint(path: Path) -> dict[str, Tensor] | None:
    """Return what a checkpoint holds; None where there is none, or a damaged one."""
    data = read(path) or b""
    data, digest = data[:-32], data[-32:]
    return safetensors.torch.load(data) if hashlib.sha256(data).digest() == digest else None


@contextmanager
def resuming(
    project: Path, *, resumable: bool, of: tuple[object, ...] = ()
) -> Iterator[Path | None]:
    """Yield where a project's training is written down, None for nowhere; gone when it is done.

    Args:
        project: The project's folder.
        resumable: Whether it is written down.
        of: What is trained, how and on what. Another training starts afresh: weights that learnt
            from other rows are not what the manifest will say.
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
