"""What counted bits come to: by domain, and as a share of what the oracle gains."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from red_lab.adapters.study import Excerpt

__all__ = ["Bits", "bits_by_domain", "mistakes", "score"]

Bits = npt.NDArray[np.float64]
"""Of each excerpt, ``(N,)``."""

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
    """Return bits per byte, and what is kept of the gain of the best over the base.

    Means are over domains; the interval, 95 %, is over excerpts drawn anew within each domain.

    Args:
        bits: Of the system.
        excerpts: What was judged.
        base: Without any adapter.
        best: With each domain's own.
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
    """Return whose excerpts were given to whom, and how often."""
    pairs = zip(excerpts, chosen, strict=True)
    return dict(Counter(f"{e.domain} → {c}" for e, c in pairs if c != e.domain))
