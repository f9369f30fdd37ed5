"""Engines: encoders that compute h in another way than torch's own, held to two promises.

away from torch's h     by no more than the engine states
in company              the bits that a text has alone
"""

from __future__ import annotations

import torch

from ...registry.errors import BackboneMismatchError
from .encoder import TextEncoder

PROBES = (
    "What is 37 plus 12?",
    "The committee meets again on Thursday to talk about the budget of the new library.",
    "gpu driver crashes when the second monitor is plugged in " * 4,
)
"""Texts that an engine is held to."""

HINT = "Use --device cpu, and report the backbone and the processor."


def hold_to(plain: TextEncoder, engine: TextEncoder) -> None:
    """Hold an engine to the encoder whose h it computes, on a few texts.

    Args:
        plain: The encoder on torch.
        engine: The same encoder on the engine, which states its tolerance.

    Raises:
        BackboneMismatchError: If it computes something else, or other bits in company.
    """
    h, made = plain.encode(PROBES), engine.encode(PROBES)
    who = f"the encoder on {engine.engine!r}"
    worst = float(((made - h).norm(dim=1) / h.norm(dim=1)).max())
    if not worst <= engine.tolerance:  # NaN is none either
        raise BackboneMismatchError(
            f"{who} is not the one on torch",
            expected=f"vectors within {engine.tolerance:g} of their length",
            found=f"{worst:.3g}",
            hint=HINT,
        )
    if not torch.equal(torch.cat([engine.encode([text]) for text in PROBES]), made):
        raise BackboneMismatchError(
            f"{who} mixes texts",
            expected="the bits that a text has alone",
            found="others, of texts in one pass",
            hint=HINT,
        )
