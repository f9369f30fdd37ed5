"""The files of an adapter as PEFT writes them, and the expert that they make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from redhost_peft.lora import LoraExpert, lora_from_files
from redhost_peft.peft_adapter import CONFIG, WEIGHTS

__all__ = ["Files", "expert_of", "files_of", "shuffled"]

Files = Mapping[str, bytes]


def files_of(package: Path) -> dict[str, bytes]:
    """Return PEFT's two files of a package."""
    return {name: (package / name).read_bytes() for name in (CONFIG, WEIGHTS)}


def expert_of(files: Files) -> LoraExpert:
    """Return an adapter without a head."""
    return lora_from_files(files, who="an adapter", space="hidden", labels=()).requires_grad_(False)


def shuffled(files: Files, seed: int) -> dict[str, bytes]:
    """Return an adapter of the same shapes with the values of each tensor permuted at random."""
    generator = torch.Generator().manual_seed(seed)
    made = {
        name: t.flatten()[torch.randperm(t.numel(), generator=generator)].reshape(t.shape)
        for name, t in safetensors.torch.load(files[WEIGHTS]).items()
    }
    return {CONFIG: files[CONFIG], WEIGHTS: safetensors.torch.save(made)}
