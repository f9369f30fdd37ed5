"""Live shares: the experts' shares of the texts, estimated from the router's weights, no labels.

A router's weights α are posteriors under the shares p that it expects: those it was trained on, or
a given prior. If texts come in other shares q, the maximum-likelihood estimate of q is the fixed
point of (Saerens, Latinne and Decaestecker 2002)

    q_k ← mean over n of  (q_k / p_k) α_nk / Σ_j (q_j / p_j) α_nj
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import torch

import redhost
from redhost_serve.threads import attempt

__all__ = ["RecentWeights", "Saver", "expected_shares", "live_shares"]

SIZE = 2000
"""Number of texts in the window."""
ROUNDS, CLOSE = 500, 1e-6

FAILED = "live shares are not written"


class RecentWeights:
    """The weights of the last texts of one generation.

    Args:
        size: Number of texts.
    """

    def __init__(self, size: int = SIZE) -> None:
        self._weights: deque[tuple[float, ...]] = deque(maxlen=size)
        self._columns: tuple[int | None, tuple[str, ...]] = (None, ())
        self._guard = threading.Lock()

    def add(self, answers: Sequence[redhost.Answer]) -> None:
        """Add the weights of texts; another generation resets the window."""
        with self._guard:
            for answer in answers:
                columns = answer.generation, tuple(answer.weights)
                if columns != self._columns:
                    self._columns = columns
                    self._weights.clear()
                self._weights.append(tuple(answer.weights.values()))

    def estimate(
        self, prior: Mapping[str, float], *, generation: int
    ) -> tuple[dict[str, float], int]:
        """Return the share of each column, and the number of texts.

        The shares are empty if the last texts were answered by another generation.

        Args:
            prior: The share of each column that the router expects.
            generation: The router's generation.
        """
        with self._guard:
            (number, columns), rows = self._columns, list(self._weights)
        if not rows or number != generation or set(columns) != prior.keys():
            return {}, 0
        alpha = torch.tensor(rows, dtype=torch.float64)
        p = torch.tensor([prior[c] for c in columns], dtype=torch.float64)
        return dict(zip(columns, live_shares(alpha, p).tolist(), strict=True)), len(rows)


def live_shares(alpha: torch.Tensor, prior: torch.Tensor) -> torch.Tensor:
    """Return q ``(K,)``, which sums to 1.

    Args:
        alpha: Weights ``(N, K)``.
        prior: p ``(K,)``, each more than 0.
    """
    q = prior / prior.sum()
    for _ in range(ROUNDS):
        weighed = alpha * (q / prior)
        new = (weighed / weighed.sum(-1, keepdim=True).clamp_min(1e-300)).mean(0)
        if bool((new - q).abs().max() < CLOSE):
            return new
        q = new
    return q


def expected_shares(host: redhost.Host, generation: int) -> dict[str, float]:
    """Return the shares of the columns that a generation's router expects, from its receipt.

    Empty if the receipt is damaged, or older than this field.
    """
    try:
        data = host.generations.file(generation, "receipt.json")
        found = msgspec.json.decode(data, type=_Receipt).router.shares
    except (redhost.RedhostError, msgspec.DecodeError):
        return {}
    return found if all(share > 0 for share in found.values()) else {}


class _Shares(msgspec.Struct):
    shares: dict[str, float] = {}


class _Receipt(msgspec.Struct):
    router: _Shares = msgspec.field(default_factory=_Shares)


class Saver(threading.Thread):
    """Writes live shares into the home periodically, for `redhost recompose --prior live`.

    Args:
        home: The home.
        now: Returns the live shares, None if there are none.
        every: Seconds between two writes.
    """

    def __init__(
        self, home: Path, now: Callable[[], redhost.plugins.LiveShares | None], *, every: float = 10
    ) -> None:
        super().__init__(name="redhost-live-shares", daemon=True)
        self.home, self.every, self._now = home, every, now
        self._ended = threading.Event()
        self._last: dict[str, float] = {}

    def run(self) -> None:
        """Write periodically until it is stopped, then once more."""
        while not self._ended.wait(self.every):
            attempt(self._save, what=FAILED)
        attempt(self._save, what=FAILED)

    def stop(self) -> None:
        """Write the current shares, and end."""
        self._ended.set()
        self.join()

    def _save(self) -> None:
        found = self._now()
        if found is not None and found.shares != self._last:
            redhost.plugins.write_live_shares(self.home, found)
            self._last = found.shares
