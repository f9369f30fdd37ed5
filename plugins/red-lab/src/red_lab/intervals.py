"""Intervals: paired ones, clustered by operand pair, and those over a few random seeds.

A pair and its swap are one observation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "cluster_means", "interval", "mean_known", "mean_within", "over_seeds"]

Array = npt.NDArray[np.float64]

T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 7: 2.447, 8: 2.365, 9: 2.306, 10: 2.262}
"""Half-width of a 95 % interval in standard errors (Student's t), by number of seeds."""


def cluster_means(values: Array, clusters: Sequence[str]) -> tuple[Array, Array]:
    """Return the sum of the values and the number of rows of each cluster, sorted by name.

    Args:
        values: ``(N,)``.
        clusters: The cluster of each row.
    """
    names = sorted(set(clusters))
    place = {name: i for i, name in enumerate(names)}
    index = np.array([place[c] for c in clusters])
    sums = np.bincount(index, weights=values, minlength=len(names)).astype(np.float64)
    return sums, np.bincount(index, minlength=len(names)).astype(np.float64)


def interval(
    values: Array,
    clusters: Sequence[str],
    *,
    of: Array | None = None,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean, clusters drawn with replacement.

    For a paired comparison, pass the differences row by row.

    Args:
        values: ``(N,)``.
        clusters: The cluster of each row.
        of: The weight of each row in the denominator ``(N,)``, if the mean is not over rows.
        draws: Number of bootstrap samples.
        seed: Random seed of the samples.
    """
    sums, counts = cluster_means(values, clusters)
    if of is not None:
        counts, _ = cluster_means(of, clusters)
    rng = np.random.default_rng(seed)
    chosen = rng.integers(len(sums), size=(draws, len(sums)))
    means = sums[chosen].sum(axis=1) / counts[chosen].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def mean_within(values: Array, clusters: Sequence[str]) -> dict[str, float]:
    """Return the mean of values with its interval, ``low`` and ``high``, clusters drawn."""
    low, high = interval(values, clusters)
    return {"mean": float(values.mean()), "low": low, "high": high}


def mean_known(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are known; None if none is."""
    known = [v for v in values if v is not None]
    return float(np.mean(known)) if known else None


def over_seeds(values: Sequence[float]) -> dict[str, float]:
    """Return mean and 95 % interval (Student's t) over seeds."""
    mean = float(np.mean(values))
    count = len(values)
    if count == 1:
        return {"mean": mean, "low": mean, "high": mean}
    half = T95.get(count, 1.96) * float(np.std(values, ddof=1)) / count**0.5
    return {"mean": mean, "low": mean - half, "high": mean + half}
