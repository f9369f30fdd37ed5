"""Validation of rows of probabilities over one alphabet.

Exact solvers use numpy float64: they need no gradient, their last steps are small linear systems,
and a game is solved without loading torch's autograd. Only the gradient-trained parts
(`primal_dual`, `causal_training`) use torch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import GameError

__all__ = ["LEAST", "SUM_TOLERANCE", "Array", "numbers", "probability_rows", "probability_vector"]

Array = NDArray[np.float64]
"""The array type that every function here takes and returns."""

SUM_TOLERANCE = 1e-9
"""How far a row's sum may be from 1; accepted rows are divided by their sum."""

LEAST = 1e-200
"""Probabilities below this count as 0: their reciprocals overflow."""


def probability_rows(name: str, rows: Any) -> Array:
    """Return the rows as a read-only array that sums to 1 along its last axis.

    Args:
        name: The argument's name, e.g. ``domains``; errors name the row as ``domains[2]``.
        rows: K vectors of one length X ≥ 1, finite, not negative, each with sum 1.

    Returns:
        The rows ``(K, X)``, float64.

    Raises:
        GameError: If there are no rows, or a row is not such a vector.
    """
    if not hasattr(rows, "__len__") or isinstance(rows, str | bytes | dict):
        raise GameError(name, expected="a list of rows", found=type(rows).__name__)
    if len(rows) == 0:
        raise GameError(name, expected="at least one row", found="none")
    checked = [probability_vector(f"{name}[{n}]", row) for n, row in enumerate(rows)]
    for n, row in enumerate(checked):
        if len(row) != len(checked[0]):
            raise GameError(
                f"{name}[{n}]",
                expected=f"{len(checked[0])} probabilities as in {name}[0]",
                found=f"{len(row)}",
                hint="All rows are over one alphabet: write 0 for what a row never emits.",
            )
    stacked = np.stack(checked)
    stacked.setflags(write=False)
    return stacked


def probability_vector(name: str, values: Any) -> Array:
    """Return one vector ``(X,)`` that sums to 1.

    Raises:
        GameError: If it is not a flat list of finite numbers ≥ 0 that sum to 1 within 1e-9.
    """
    row = numbers(name, values)
    if row.ndim != 1 or len(row) == 0:
        found = "an empty one" if row.size == 0 else f"shape {row.shape}"
        raise GameError(name, expected="a flat list of probabilities", found=found)
    for bad, wanted in ((~np.isfinite(row), "finite numbers"), (row < 0, "numbers ≥ 0")):
        if bad.any():
            at = int(bad.argmax())
            raise GameError(name, expected=wanted, found=f"{row[at]} at position {at}")
    total = float(row.sum())
    if abs(total - 1) > SUM_TOLERANCE:
        raise GameError(
            name,
            expected=f"a sum of 1 within {SUM_TOLERANCE:g}",
            found=f"{total:.12g}",
            hint="Divide the row by its sum.",
        )
    return np.where(row < LEAST, 0.0, row / total)


def numbers(name: str, values: Any) -> Array:
    """Return the values as a float64 array; raise `GameError` if they are not numbers."""
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError as e:
        raise GameError(name, expected="finite numbers", found="one too large to hold") from e
    except (TypeError, ValueError) as e:
        raise GameError(name, expected="a flat list of numbers", found=str(e)) from e
