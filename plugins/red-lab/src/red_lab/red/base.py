"""Stages 0 and 1: the trunk once, then its top k blocks with a global head, frozen ever after.

The literal recipe of the seed (4.5.2): AdamW at 1e-4, 8 epochs, batches of 128, cross-entropy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn

import redhost
from red_lab.arithmetic import hashed
from red_lab.red.cut import Above, Below, above
from red_lab.red.queries import LABELS, Query

__all__ = ["Base", "BaseSettings", "train_base"]

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class BaseSettings:
    """How the base stage trains.

    Attributes:
        last_blocks: k, the trained blocks.
        epochs: Passes over the questions.
        batch: Questions a step.
        learning_rate: AdamW's.
        head_rate: The global head's.
        share: Share of the training questions the base sees, by cluster.
        seed: Of the head, the order and the share.
    """

    last_blocks: int = 2
    epochs: int = 8
    batch: int = 128
    learning_rate: float = 1e-4
    head_rate: float = 1e-4
    share: float = 1.0
    seed: int = 0

    def sees(self, query: Query) -> bool:
        """Say whether the base trains on a question: its cluster decides, by a hash."""
        return hashed(f"base {query.cluster}") % 10_000 < round(self.share * 10_000)


@dataclass(frozen=True, kw_only=True, eq=False)
class Base:
    """A frozen base.

    Attributes:
        h: Features of every distinct text ``(N, D)``.
        classifier: The global head W_c ``(C, D)``.
        place: Row of each text.
    """

    h: Tensor
    classifier: Tensor
    place: dict[str, int]

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
) -> Base:
    """Train the top blocks and the global head on H, or take a finished base from its file.

    Args:
        backbone: The bare backbone.
        hidden: H of every text.
        train: The questions to learn from.
        settings: How.
        checkpoint: The finished base, and while it trains the last whole epoch.
        progress: Called with (steps done, steps in all).
    """
    if checkpoint.exists():
        stored = safetensors.torch.load_file(checkpoint)
        return Base(h=stored["h"], classifier=stored["classifier"], place=hidden.place)
    job = _Job(backbone, settings)
    train = [q for q in train if settings.sees(q)]
    rows = hidden.rows([q.text for q in train])
    targets = torch.tensor([LABELS.index(q.label) for q in train])
    note = checkpoint.with_suffix(".epoch")
    start = job.load(note)
    steps = -(-len(rows) // settings.batch)
    for epoch in range(start, settings.epochs):
        order = job.order(epoch, len(rows))
        for n, index in enumerate(torch.split(order, settings.batch)):
            job.step(hidden, rows[index], targets[index])
            if progress is not None:
                progress(epoch * steps + n + 1, settings.epochs * steps)
        job.save(note, epoch + 1)
    h = job.features(hidden)
    classifier = job.head.detach().clone()
    safetensors.torch.save_file({"h": h, "classifier": classifier}, checkpoint)
    note.unlink(missing_ok=True)
    return Base(h=h, classifier=classifier, place=hidden.place)


class _Job:
    """The blocks and the head while they train."""

    def __init__(self, backbone: redhost.Backbone, settings: BaseSettings) -> None:
        generator = torch.Generator().manual_seed(settings.seed)
        width = backbone.width
        self.settings = settings
        self.blocks: Above = above(backbone.trunk, last_blocks=settings.last_blocks).train()
        self.head = nn.Parameter(0.02 * torch.randn(len(LABELS), width, generator=generator))
        groups = [
            {"params": list(self.blocks.parameters()), "lr": settings.learning_rate},
            {"params": [self.head], "lr": settings.head_rate},
        ]
        self.optimizer = torch.optim.AdamW(groups)

    def order(self, epoch: int, rows: int) -> Tensor:
        """Return the order of an epoch, which does not depend on the epochs before it."""
        generator = torch.Generator().manual_seed(self.settings.seed * 1000 + epoch)
        return torch.randperm(rows, generator=generator)

    def step(self, hidden: Below, rows: Tensor, targets: Tensor) -> None:
        """Take one step on a batch of rows of H."""
        h = self.blocks(*hidden.batch(rows))
        loss = nn.functional.cross_entropy(h @ self.head.T, targets)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def features(self, hidden: Below) -> Tensor:
        """Return h of every text, ``(N, D)``."""
        self.blocks.eval()
        with torch.inference_mode():
            parts = [
                self.blocks(*hidden.batch(rows))
                for rows in torch.split(torch.arange(len(hidden.lengths)), 256)
            ]
        return torch.cat(parts)

    def save(self, path: Path, epoch: int) -> None:
        """Write down everything of a whole epoch."""
        state = {"blocks": self.blocks.state_dict(), "head": self.head.data, "epoch": epoch}
        torch.save({**state, "optimizer": self.optimizer.state_dict()}, path)

    def load(self, path: Path) -> int:
        """Take up a training; return the epochs done."""
        if not path.exists():
            return 0
        state = torch.load(path, weights_only=True)
        self.blocks.load_state_dict(state["blocks"])
        self.head.data = state["head"]
        self.optimizer.load_state_dict(state["optimizer"])
        return int(state["epoch"])
