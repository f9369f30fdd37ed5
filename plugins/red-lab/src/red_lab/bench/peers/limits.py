"""How much both routers' training sees at a time: the page counts with it, too."""

from __future__ import annotations

__all__ = ["BATCH", "CARD", "LOOK", "RATE"]

BATCH, LOOK, RATE = 32, 20, 1e-2
"""Rows of a step, steps between two looks at the accuracy, and AdamW's rate: the best of six tried
on held-out rows (rates 3e-3 and 1e-2, 5e-3 with 128 rows and more decay, layerwise scalings, two
layers at 1e-3, a temperature of .3)."""

CARD = 64
"""Rows of a card: `fit` and `gate`, as the range experts ship them, or nearly."""
