"""How texts become what a bus reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

__all__ = ["Encode"]

Encode = Callable[[Sequence[str]], Tensor]
"""Texts → h ``(N, D)``, usually through the feature cache."""
