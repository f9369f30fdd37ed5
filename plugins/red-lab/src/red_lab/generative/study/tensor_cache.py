"""A cache of computed tensors: one file each, written atomically."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

import redhost
from redhost.core.bus.experts import LowRank

__all__ = ["Made", "cached_expert", "cached_tensors", "seconds_of"]

Made = tuple[dict[str, Tensor], float]
"""Tensors by name, and the seconds of their computation."""


def cached_tensors(file: Path, make: Callable[[], Mapping[str, Tensor]]) -> Made:
    """Return the contents of a file; compute and save them if it does not exist."""
    if not file.exists():
        start = perf_counter()
        tensors = {name: t.detach().contiguous() for name, t in make().items()}
        metadata = {"seconds": repr(perf_counter() - start)}
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(".part")
        safetensors.torch.save_file(tensors, part, metadata=metadata)
        part.replace(file)
    return _read(file)


def seconds_of(file: Path) -> float:
    """Return the seconds that the tensors of a file took to compute."""
    return _read(file)[1]


def _read(file: Path) -> Made:
    opened: Any = safetensors.safe_open(file, framework="pt")
    with opened as held:
        found = {name: held.get_tensor(name).clone() for name in held.keys()}  # noqa: SIM118
        return found, float(held.metadata()["seconds"])


def cached_expert(
    file: Path, make: Callable[[], redhost.Expert], *, activation: str = "gelu"
) -> redhost.Expert:
    """Return a frozen low-rank expert, made once."""
    tensors, _ = cached_tensors(file, lambda: make().state_dict())
    expert = LowRank(U=tensors["U"], V=tensors["V"], activation=activation, space="hidden")
    return expert.requires_grad_(False).eval()
