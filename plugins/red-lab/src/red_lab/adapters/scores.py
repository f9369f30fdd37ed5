"""Scores from measured bits: by domain, and as a fraction of the oracle's gain."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from red_lab.adapters.study import Excerpt

__all__ = ["Bits", "bits_by_domain", "mistakes", "score"]

Bits = npt.NDArray[np.float64]
"""Bits of each excerpt, ``(N,)``."""

DRAWS = 2000
"""Bootstrap samples."""


def bits_by_domain(bits: Bits, excerpts: Sequence[Excerpt]) -> dict[str, float]:
    """Return bits per byte of each domain."""
    total, size = Counter[str](), Counter[str]()
    for e, b in zip(excerpts, bits.tolist(), strict=True):
        total[e.domain] += b
        size[e.domain] += e.size
    return {name: float(total[name]) / size[name] for name in size}


def score(bits: Bits, excerpts: Sequence[Excerpt], *, base: Bits, best: Bits) -> dict[str, Any]:
    """Return bits per byte, and the fraction of the best system's gain over the base.

    Means are over domains; the 95 % interval is a bootstrap over excerpts within each domain.

    Args:
        bits: The system's bits.
        excerpts: The measured excerpts.
        base: The bits without any adapter.
        best: The bits with each domain's own adapter.
    """
    sizes = np.array([e.size for e in excerpts], dtype=np.float64)
    domains = np.array([e.domain for e in excerpts])
    places = [np.flatnonzero(domains == d) for d in dict.fromkeys(domains.tolist())]
    rng = np.random.default_rng(0)

    def mean(counts: Bits, index: Sequence[Any]) -> float:
        return float(np.mean([counts[i].sum() / sizes[i].sum() for i in index]))

    def share(index: Sequence[Any]) -> float:
        nothing, all_of_it, own = (mean(counts, index) for counts in (base, best, bits))
        return (nothing - own) / (nothing - all_of_it)

    drawn = [share([rng.choice(p, len(p)) for p in places]) for _ in range(DRAWS)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return {
        "bits": bits_by_domain(bits, excerpts),
        "mean": mean(bits, places),
        "of_oracle": mean(best, places) / mean(bits, places),
        "share": share(places),
        "low": float(low),
        "high": float(high),
    }


def mistakes(chosen: Sequence[str], excerpts: Sequence[Excerpt]) -> dict[str, int]:
    """Return the count of each wrong choice, by the excerpt's domain and the chosen adapter."""
    pairs = zip(excerpts, chosen, strict=True)
    return dict(Counter(f"{e.domain} → {c}" for e, c in pairs if c != e.domain))
