"""Checkpoints of long work: tensors only, written so that a kill leaves the old one whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor

from ..registry.atomic import write_atomic

__all__ = ["load_checkpoint", "save_checkpoint"]


def save_checkpoint(path: Path, state: Mapping[str, Tensor]) -> None:
    """Replace a checkpoint by a new one, atomically."""
    tensors = {k: v.detach().contiguous().clone() for k, v in state.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, safetensors.torch.save(tensors))


def load_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read a checkpoint."""
    return safetensors.torch.load(path.read_bytes())
