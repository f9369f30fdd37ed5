"""A temporary home, and a folder of packages that precedes the installed packages on the path.

A package in that folder hides the installed package of the same name, as an upgrade does; once it
is removed, the old one is visible again. Installed packages cannot be uninstalled without changing
this environment, so they are disabled on the command line.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import torch

import redhost
from redhost.registry.environment import python_command
from redhost.testing import Environment

__all__ = ["Level", "Site", "Step", "bytes_changed"]

Level = Literal["zero", "row", "full"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Step:
    """A recompose and its outcome.

    Attributes:
        receipt: Its receipt.
        refused: Whether it was refused before it was accepted.
        seconds: Time of the whole recompose: reading, checking, training the router, publishing.
        accuracy: By range, on the backbone's held-out rows.
        answers: The sha256 of the probabilities on those rows.
        sizes: Bytes of the backbone (under ``backbone``) and of each expert.
    """

    receipt: redhost.Receipt
    refused: bool
    seconds: float
    accuracy: Mapping[str, float]
    answers: str
    sizes: Mapping[str, int]

    @property
    def digests(self) -> dict[str, tuple[str, str]]:
        """Digests before and after the router was trained, by part."""
        parts = {"backbone": self.receipt.backbone, **self.receipt.experts}
        return {name: (change.before, change.after) for name, change in parts.items()}


def bytes_changed(before: Step, after: Step, *, swapped: str) -> int:
    """Count the bytes outside the router that a recompose changed, by the receipts' digests.

    Args:
        before: The previous step.
        after: The step.
        swapped: The expert that was meant to change between the two steps.
    """
    old, new = before.digests, after.digests
    moved = {name for name, (start, end) in new.items() if start != end}
    moved |= {name for name in old.keys() & new.keys() - {swapped} if old[name][1] != new[name][0]}
    return sum(after.sizes[name] for name in moved)


class Site:
    """The folder of changing packages; a context manager, since it is added to ``sys.path``.

    Args:
        folder: An empty folder.
        backbone: The backbone's id.
        router: The router's kind.
    """

    def __init__(self, folder: Path, *, backbone: str, router: str) -> None:
        self.home, self.backbone, self.router = folder / "home", backbone, router
        self.environment = Environment(folder / "site")
        self.environment.folder.mkdir(parents=True)

    def __enter__(self) -> Self:
        sys.path.insert(0, str(self.environment.folder))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        sys.path.remove(str(self.environment.folder))

    def switch(self, expert_id: str, *, on: bool) -> None:
        """Run ``redhost enable`` or ``redhost disable``."""
        command = ["enable" if on else "disable", expert_id, "--home", str(self.home)]
        subprocess.run(  # noqa: S603  (our own command)
            python_command("-m", "redhost", *command), check=True, capture_output=True
        )

    def recompose(self, level: Level) -> Step:
        """Recompose the current packages in a newly opened host, and evaluate the outcome."""
        with redhost.Host.open(self.home, backbone=self.backbone) as host:
            start, refused = time.perf_counter(), False
            try:
                receipt = host.recompose(router=self.router, level=level, seed=0)
            except redhost.errors.HarmError:
                start, refused = time.perf_counter(), True
                receipt = host.recompose(router=self.router, level=level, seed=0, accept=True)
            seconds = time.perf_counter() - start
            composed = host.composed
            rows = composed.evaluation
            h = host.encoder(composed)([r.text for r in rows])
        with torch.inference_mode():
            p, _ = composed.bus(h)
        return Step(
            receipt=receipt,
            refused=refused,
            seconds=seconds,
            accuracy=composed.accuracy(h, rows),
            answers=hashlib.sha256(p.contiguous().numpy().tobytes()).hexdigest(),
            sizes=_sizes(composed),
        )


def _sizes(composed: redhost.ComposedModel) -> dict[str, int]:
    """Return the bytes of the backbone and of every expert."""
    backbone = composed.backbone
    parts = {"backbone": list(backbone.trunk.model.state_dict().values())}
    if backbone.classifier is not None:
        parts["backbone"].append(backbone.classifier)
    for name, expert in zip(composed.bus.ids, composed.bus.parts(), strict=True):
        parts[name] = list(expert.state_dict().values())
    return {name: sum(t.nbytes for t in tensors) for name, tensors in parts.items()}
