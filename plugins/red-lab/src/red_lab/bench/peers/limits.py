"""How much both routers' training sees at a time: the page counts with it, too."""

from __future__ import annotations

__all__ = ["BATCH", "CARD", "LOOK", "RATE"]

BATCH, LOOK, RATE = 32, 20, 1e-2
"""Rows of a step, steps between two looks at the accuracy, and AdamW's rate."""

CARD = 64
"""Rows of a card: `fit` and `gate`, as the range experts ship them, or nearly."""
