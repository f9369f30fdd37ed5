"""The canary: a few bus vectors with the Δ that the author computed, recomputed on attach."""

from __future__ import annotations

import math
from collections.abc import Callable

import safetensors.torch
import torch
from torch import Tensor

from ...registry.package.checked import Violation
from ...registry.package.manifest import ExpertManifest
from ..bus.experts import Expert

NUMBERS = 2**21
"""Approximate limit on the numbers held at once while a canary is computed."""

_OTHER = "The weights do not reproduce what the author recorded: ask for a new build."


def check_tokens(
    manifest: ExpertManifest, data: bytes, *, vocabulary: int, read: Callable[[Tensor], Tensor]
) -> Violation | None:
    """Recompute an expert's output on the canary's tokens; return a violation if it differs.

    Args:
        manifest: The expert's manifest.
        data: The canary; one without tokens is not of an expert that changes h.
        vocabulary: The size of the backbone's vocabulary.
        read: Token ids ``(N, T)`` → what the expert reads of them, ``(N, D)``.
    """
    tensors, tolerance = safetensors.torch.load(data), manifest.canary.tolerance
    if (tokens := tensors.get("tokens")) is None:
        return None
    expected = f"the recorded z within {tolerance:g}"
    if int(tokens.max()) >= vocabulary:
        token = f"token {int(tokens.max())}, and the backbone has a vocabulary of {vocabulary}"
        return Violation("canary_values", "canary", expected, token, _OTHER)
    error = float((read(tokens) - tensors["z"].float()).abs().max())
    if error <= tolerance:
        return None
    return Violation("canary_values", "canary", expected, f"a deviation of {error:.3g}", _OTHER)


def check_canary(manifest: ExpertManifest, expert: Expert, data: bytes) -> Violation | None:
    """Recompute Δ of the canary's vectors; return a violation if it differs from the author's.

    Compare each entry of Δ within the tolerance, and ‖Δ‖ with the manifest's bound, if any.

    Args:
        manifest: The expert's manifest.
        expert: The expert.
        data: The canary.
    """
    tensors = safetensors.torch.load(data)
    if (
        tensors.keys() - {"tokens"} != {"z", "delta"}
        or tensors["z"].shape[-1] != manifest.reads.width
    ):
        return Violation(
            "canary_values",
            "canary",
            f"tensors z (N, {manifest.reads.width}), delta",
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
            _OTHER,
        )
    if bound is not None and norm > bound + tolerance:
        return Violation(
            "norm_bound",
            "norm_bound",
            f"‖Δ‖ of at most {bound:g}, the bound in its manifest",
            f"{norm:.4g} on its canary",
            "Its output exceeds the bound of its manifest: ask its author for a new build.",
        )
    return None


def _measure(expert: Expert, z: Tensor, expected: Tensor) -> tuple[float, float]:
    """Return the largest |Δ(z) − expected| and ‖Δ(z)‖, computed in steps that bound the memory."""
    widest = max((max(p.shape, default=1) for p in expert.parameters()), default=1)
    step = max(1, NUMBERS // widest)
    worst = norm = 0.0
    with torch.inference_mode():
        for rows, recorded in zip(torch.split(z, step), torch.split(expected, step), strict=True):
            delta = expert(rows)
            if delta.shape != recorded.shape:
                return math.inf, math.inf
            error = float((delta - recorded).abs().max())
            worst = math.inf if math.isnan(error) else max(worst, error)
            norm = max(norm, float(delta.norm(dim=-1).max()))
    return worst, norm
