"""The canary: a few bus vectors and the Δ their author saw, computed again on attach."""

from __future__ import annotations

import safetensors.torch
import torch
from torch import Tensor

from ..registry.manifest import ExpertManifest
from ..registry.violations import Violation
from .experts import Expert

__all__ = ["check_canary", "make_canary"]


def make_canary(expert: Expert, z: Tensor) -> bytes:
    """Write a canary file.

    Args:
        expert: The finished expert.
        z: The bus vectors to remember, ``(N, D)``.
    """
    with torch.inference_mode():
        delta = expert(z)
    return safetensors.torch.save({"z": z.contiguous(), "delta": delta.contiguous()})


def check_canary(manifest: ExpertManifest, expert: Expert, data: bytes) -> Violation | None:
    """Compute Δ of the canary's vectors; return a violation if it is not what the author saw."""
    tensors = safetensors.torch.load(data)
    if tensors.keys() != {"z", "delta"} or tensors["z"].shape[-1] != manifest.reads.width:
        return Violation(
            "canary_values",
            "canary",
            f"tensors z (N, {manifest.reads.width}) and delta",
            ", ".join(f"{n} {tuple(t.shape)}" for n, t in sorted(tensors.items())),
            "Rebuild the package.",
        )
    with torch.inference_mode():
        delta = expert(tensors["z"])
    if delta.shape != tensors["delta"].shape:
        error = float("inf")
    else:
        error = float((delta - tensors["delta"]).abs().max())
    if error <= manifest.canary.tolerance:
        return None
    return Violation(
        "canary_values",
        "canary",
        f"the recorded Δ within {manifest.canary.tolerance:g}",
        f"a deviation of {error:.3g}",
        "The weights do not compute what their author saw: ask for a new build.",
    )
