"""One adapter trained on all authors' texts, which they would have to share.

It is trained on the union of the authors' training windows, shuffled, in as many steps as all of
their adapters together, at the sum of their ranks.
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
    """Return all authors' training windows ``(S · BATCH, WINDOW)``, in random order.

    Args:
        texts: Each author's training text.
        steps: Each author's number of steps.
        tokenizer: The language model's.
    """
    rows = torch.cat([training_windows(t, tokenizer, steps=steps[n]) for n, t in texts.items()])
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]


def train_joint(folder: Path, learnt: Tensor, *, model: Any, authors: int) -> Path:
    """Train the joint adapter of so many authors, unless it exists; return its folder."""
    train_stranger(folder, learnt, model=model, rank=authors * RANK, progress=shown("joint"))
    return folder
