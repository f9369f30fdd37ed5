"""One adapter of everybody's texts: what authors would have to train who share them.

It learns the very windows that the authors' own adapters learn, all of them, shuffled, in as many
steps, and has the ranks of all of them summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from red_lab.adapters.strangers import RANK, train_stranger, training_windows
from red_lab.progress import shown

__all__ = ["shuffled_windows", "train_joint"]


def shuffled_windows(texts: Mapping[str, str], steps: Mapping[str, int], tokenizer: Any) -> Tensor:
    """Return what all authors' adapters learn ``(S · BATCH, WINDOW)``, in random order.

    Args:
        texts: What each author trains on.
        steps: For how long.
        tokenizer: The language model's.
    """
    rows = torch.cat([training_windows(t, tokenizer, steps=steps[n]) for n, t in texts.items()])
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]


def train_joint(folder: Path, learnt: Tensor, *, model: Any, authors: int) -> Path:
    """Train the joint adapter of so many authors, unless that is done; return where it is."""
    train_stranger(folder, learnt, model=model, rank=authors * RANK, progress=shown("joint"))
    return folder
