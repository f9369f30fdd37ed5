"""Engines: encoders that compute h in another way than torch's own, under two guarantees.

    distance to torch's h   at most the engine's stated tolerance
    with other texts        the bits that a text has alone

Both are checked on a few texts whenever an encoder is opened, on the processor that will run it.
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
"""Texts on which an engine is checked."""

HINT = "Use --device cpu, and report the backbone and the processor."


class EngineEncoder(TextEncoder):
    """An encoder that computes h in another way; subclasses set `engine` and `tolerance`.

    Args:
        encoder: The same encoder on torch, in float32.
    """

    def __init__(self, encoder: TextEncoder) -> None:
        super().__init__(
            model=encoder.model,
            tokenizer=encoder.tokenizer,
            pooling=encoder.pooling,
            max_tokens=encoder.max_tokens,
            features=encoder.features,
            head=encoder.head,
            stated=encoder.stated,
        )

    def hold_to(self, plain: TextEncoder) -> None:
        """Compare this encoder with the one whose h it computes, on a few texts.

        Args:
            plain: The encoder on torch, in float32.

        Raises:
            BackboneMismatchError: If its h is beyond the tolerance, or if a text's bits depend on
                the other texts of the pass.
        """
        h, h_engine = plain.encode(PROBES), self.encode(PROBES)
        subject = f"the encoder on {self.engine!r}"
        worst = float(((h_engine - h).norm(dim=1) / h.norm(dim=1)).max())
        if not worst <= self.tolerance:  # also true for NaN
            raise BackboneMismatchError(
                f"{subject} is not the one on torch",
                expected=f"vectors within {self.tolerance:g} of their length",
                found=f"{worst:.3g}",
                hint=HINT,
            )
        if not torch.equal(torch.cat([self.encode([text]) for text in PROBES]), h_engine):
            raise BackboneMismatchError(
                f"{subject} mixes texts",
                expected="the bits that a text has alone",
                found="others, of texts in one pass",
                hint=HINT,
            )
