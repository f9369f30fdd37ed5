"""Batch sizes of both routers' training; the page uses them too."""

from __future__ import annotations

__all__ = ["BATCH", "CARD", "LOOK", "RATE"]

BATCH, LOOK, RATE = 32, 20, 1e-2
"""Rows of a step, steps between two evaluations, and AdamW's learning rate: the best of six tried
on held-out rows (rates 3e-3 and 1e-2, 5e-3 with 128 rows and more decay, layerwise scalings, two
layers at 1e-3, a temperature of .3)."""

CARD = 64
"""Rows of a card, `fit` and `gate`: approximately those that the range experts ship."""
