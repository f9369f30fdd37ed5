"""The canary: a few bus vectors and the Δ their author saw, computed again on attach."""

from __future__ import annotations

import math

import safetensors.torch
import torch
from torch import Tensor

from ...registry.package.checked import Violation
from ...registry.package.manifest import ExpertManifest
from ..bus.experts import Expert

NUMBERS = 2**21
"""At most about this many numbers at once while a canary is computed."""


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
    """Compute Δ of the canary's vectors; return what is not as the author saw and promised it.

    That is each entry of Δ, within the tolerance, and ‖Δ‖ where the manifest bounds it.
    """
    tensors = safetensors.torch.load(data)
    if tensors.keys() != {"z", "delta"} or tensors["z"].shape[-1] != manifest.reads.width:
        return Violation(
            "canary_values",
            "canary",
            f"tensors z (N, {manifest.reads.width}) and delta",
            ", ".join(f"{n} {tuple(t.shape)}" for n, t in sorted(tensors.items())),
            "Rebuild the package.",
        )
    error, norm = _measure(expert, tensors["z"].float(), tensors["delta"].float())
    tolerance, bound = manifest.canary.tolerance, manifest.norm_bound
    if error > tolerance:
        return Violation(
            "canary_values",
            "canary",
            f"the recorded Δ within {tolerance:g}",
            f"a deviation of {error:.3g}",
            "The weights do not compute what their author saw: ask for a new build.",
        )
    if bound is not None and norm > bound + tolerance:
        return Violation(
            "norm_bound",
            "norm_bound",
            f"‖Δ‖ of at most {bound:g}, as its manifest promises",
            f"{norm:.4g} on its canary",
            "The expert says more than its author promises: ask for a new build.",
        )
    return None


def _measure(expert: Expert, z: Tensor, expected: Tensor) -> tuple[float, float]:
    """Return the largest |Δ(z) − expected| and ‖Δ(z)‖, computed in steps that bound the memory."""
    widest = max((max(p.shape, default=1) for p in expert.parameters()), default=1)
    step = max(1, NUMBERS // widest)
    worst = norm = 0.0
    with torch.inference_mode():
        for rows, wanted in zip(torch.split(z, step), torch.split(expected, step), strict=True):
            delta = expert(rows)
            if delta.shape != wanted.shape:
                return math.inf, math.inf
            error = float((delta - wanted).abs().max())
            worst = math.inf if math.isnan(error) else max(worst, error)
            norm = max(norm, float(delta.norm(dim=-1).max()))
    return worst, norm
