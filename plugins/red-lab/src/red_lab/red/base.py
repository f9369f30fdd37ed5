"""Stages 0 and 1: run the trunk once, train its top k blocks with a global head, freeze them.

The recipe `seed` is the literal recipe of the seed (4.5.2): two blocks, AdamW at 1e-4, 8 epochs,
batches of 128, cross-entropy. Its features fit every training question and hardly any other. The
recipe `fourier` is for held-out questions: six blocks, and a global head W_c = Φ A whose rows are
Fourier features of the label's number, so that training on one answer generalises to others.
`fourier-tiny` is the same with blocks and rates for the small model of the embedded backbone.
`fourier-long` takes more and smaller steps, which questions of three terms need.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Literal

import safetensors.torch
import torch
from torch import Tensor, nn

import redhost
from red_lab.arithmetic import hashed
from red_lab.red.cut import Above, Below, Precision, cast
from red_lab.red.queries import LABELS, Query

__all__ = [
    "RECIPES",
    "BaseSettings",
    "BaseTraining",
    "FrozenBase",
    "number_waves",
    "train_base",
]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class BaseSettings:
    """Training settings of the base stage.

    Attributes:
        last_blocks: k, the trained blocks.
        epochs: Passes over the questions.
        batch: Questions a step.
        learning_rate: AdamW's.
        head_rate: The global head's.
        head: ``free`` rows of W_c, or ``fourier`` ones: W_c = Φ A, A learnt.
        schedule: ``constant`` rates, or ``cosine`` after 50 steps of warm-up.
        precision: What the trunk and the blocks compute in; weights stay float32.
        share: Share of the training questions that the base is trained on, by cluster.
        seed: Random seed of the head, the order and the share.
    """

    last_blocks: int = 2
    epochs: int = 8
    batch: int = 128
    learning_rate: float = 1e-4
    head_rate: float = 1e-4
    head: Literal["free", "fourier"] = "free"
    schedule: Literal["constant", "cosine"] = "constant"
    precision: Precision = "float32"
    share: float = 1.0
    seed: int = 0

    def sees(self, query: Query) -> bool:
        """Return whether the base is trained on a question, decided by a hash of its cluster."""
        return hashed(f"base {query.cluster}") % 10_000 < round(self.share * 10_000)


FOURIER = BaseSettings(
    last_blocks=6,
    epochs=3,
    learning_rate=3e-4,
    head_rate=1e-3,
    head="fourier",
    schedule="cosine",
)

RECIPES: Mapping[str, BaseSettings] = {
    "seed": BaseSettings(),
    "fourier": FOURIER,
    "fourier-long": replace(FOURIER, epochs=12, batch=32),
    "fourier-tiny": replace(FOURIER, last_blocks=4, learning_rate=1e-3, head_rate=3e-3),
}

PERIODS = (2, 5, 10, 20, 50, 100, 200)
WARMUP = 50


def number_waves(labels: Sequence[str]) -> Tensor:
    """Return Φ ``(C, K)``: 1, n, n² and cos, sin of 2πn/T for every T of `PERIODS`.

    Pretrained language models add numbers in such features (Zhou and others 2024,
    arXiv 2406.03445).
    """
    n = torch.tensor([float(y) for y in labels])
    middle = (n - 50) / 50
    turns = [2 * math.pi * n / period for period in PERIODS]
    waves = [wave(turn) for turn in turns for wave in (torch.cos, torch.sin)]
    return torch.stack([torch.ones_like(n), middle, middle**2, *waves], dim=1)


@dataclass(frozen=True, kw_only=True, eq=False)
class FrozenBase:
    """A frozen base.

    Attributes:
        h: Features of every distinct text ``(N, D)``.
        classifier: The global head W_c ``(C, D)``.
        place: Row of each text.
        seconds: Total training time, interruptions excluded.
    """

    h: Tensor
    classifier: Tensor
    place: dict[str, int]
    seconds: float = 0.0

    def rows(self, queries: Sequence[Query]) -> Tensor:
        """Return the rows of the questions' texts, ``(M,)``."""
        return torch.tensor([self.place[q.text] for q in queries])


def train_base(
    backbone: redhost.Backbone,
    hidden: Below,
    train: Sequence[Query],
    *,
    settings: BaseSettings,
    checkpoint: Path,
    progress: Progress | None = None,
) -> FrozenBase:
    """Train the top blocks and the global head on H, or load a finished base from its file.

    Args:
        backbone: The bare backbone.
        hidden: H of every text.
        train: The training questions.
        settings: Settings of the base stage.
        checkpoint: File of the finished base; the last complete epoch is kept next to it.
        progress: Called with (steps done, steps in all).
    """
    if checkpoint.exists():
        stored = safetensors.torch.load_file(checkpoint)
        seconds = float(stored.pop("seconds"))
        return FrozenBase(**stored, place=hidden.place, seconds=seconds)
    job = BaseTraining(backbone, settings)
    train = [q for q in train if settings.sees(q)]
    rows = hidden.rows([q.text for q in train])
    targets = torch.tensor([LABELS.index(q.label) for q in train])
    note = checkpoint.with_suffix(".epoch")
    start = job.load(note)
    steps = -(-len(rows) // settings.batch)
    for epoch in range(start, settings.epochs):
        order = job.order(epoch, len(rows))
        for n, index in enumerate(torch.split(order, settings.batch)):
            job.set_rates(epoch * steps + n, settings.epochs * steps)
            job.step(hidden, rows[index], targets[index])
            if progress is not None:
                progress(epoch * steps + n + 1, settings.epochs * steps)
        job.save(note, epoch + 1)
    h = job.features(hidden)
    classifier = job.classifier().detach().cpu().clone()
    seconds = job.seconds()
    stored = {"h": h, "classifier": classifier, "seconds": torch.tensor(seconds)}
    safetensors.torch.save_file(stored, checkpoint)
    note.unlink(missing_ok=True)
    return FrozenBase(h=h, classifier=classifier, place=hidden.place, seconds=seconds)


class BaseTraining:
    """The blocks and the head during training."""

    def __init__(self, backbone: redhost.Backbone, settings: BaseSettings) -> None:
        generator = torch.Generator().manual_seed(settings.seed)
        self.settings = settings
        self.device = backbone.trunk.device
        self.waves = torch.eye(len(LABELS)) if settings.head == "free" else number_waves(LABELS)
        self.waves = self.waves.to(self.device)
        drawn = 0.02 * torch.randn(self.waves.shape[1], backbone.width, generator=generator)
        self.head = nn.Parameter(drawn.to(self.device))
        self.blocks = Above(backbone.trunk, last_blocks=settings.last_blocks).train()
        groups = [
            {"params": list(self.blocks.parameters()), "lr": settings.learning_rate},
            {"params": [self.head], "lr": settings.head_rate},
        ]
        self.optimizer = torch.optim.AdamW(groups, fused=True)
        self.rates = [settings.learning_rate, settings.head_rate]
        self.before, self.start = 0.0, perf_counter()

    def classifier(self) -> Tensor:
        """Return W_c ``(C, D)``."""
        return self.waves @ self.head if self.settings.head == "fourier" else self.head

    def set_rates(self, step: int, steps: int) -> None:
        """Set the learning rates of a step."""
        if self.settings.schedule == "constant":
            return
        decay = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group, rate in zip(self.optimizer.param_groups, self.rates, strict=True):
            group["lr"] = rate * min(1.0, (step + 1) / WARMUP) * decay

    def seconds(self) -> float:
        """Return the total training time, interruptions excluded."""
        return self.before + perf_counter() - self.start

    def order(self, epoch: int, rows: int) -> Tensor:
        """Return the order of an epoch, which does not depend on the epochs before it."""
        generator = torch.Generator().manual_seed(self.settings.seed * 1000 + epoch)
        return torch.randperm(rows, generator=generator)

    def step(self, hidden: Below, rows: Tensor, targets: Tensor) -> None:
        """Take one step on a batch of rows of H."""
        h = self.h(hidden, rows)
        loss = nn.functional.cross_entropy(h @ self.classifier().T, targets.to(self.device))
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def h(self, hidden: Below, rows: Tensor) -> Tensor:
        """Return h ``(B, D)`` of rows of H, in float32."""
        below, mask = hidden.batch(rows)
        with cast(self.device, self.settings.precision):
            h: Tensor = self.blocks(below.to(self.device), mask.to(self.device))
        return h.float()

    def features(self, hidden: Below) -> Tensor:
        """Return h of every text, ``(N, D)``."""
        self.blocks.eval()
        with torch.inference_mode():
            parts = [
                self.h(hidden, rows).cpu()
                for rows in torch.split(torch.arange(len(hidden.lengths)), 256)
            ]
        return torch.cat(parts)

    def save(self, path: Path, epoch: int) -> None:
        """Save the full training state after an epoch."""
        state = {"blocks": self.blocks.state_dict(), "head": self.head.data, "epoch": epoch}
        state["seconds"] = self.seconds()
        torch.save({**state, "optimizer": self.optimizer.state_dict()}, path)

    def load(self, path: Path) -> int:
        """Resume a training; return the number of finished epochs."""
        if not path.exists():
            return 0
        state = torch.load(path, weights_only=True)
        self.blocks.load_state_dict(state["blocks"])
        self.head.data = state["head"]
        self.optimizer.load_state_dict(state["optimizer"])
        self.before = float(state["seconds"])
        return int(state["epoch"])
