"""Checkpoints of long work: tensors only, written so that a kill leaves the old one whole."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
from torch import Tensor

from ...registry.atomic import write_atomic

__all__ = ["load_checkpoint", "resuming", "save_checkpoint"]


def save_checkpoint(path: Path, state: Mapping[str, Tensor]) -> None:
    """Replace a checkpoint by a new one, atomically."""
    tensors = {k: v.detach().contiguous().clone() for k, v in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, safetensors.torch.save(tensors))


def load_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read a checkpoint."""
    return safetensors.torch.load(path.read_bytes())


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
