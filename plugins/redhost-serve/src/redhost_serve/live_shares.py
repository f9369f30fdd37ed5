"""Whose texts come in, estimated from the router's weights alone: nobody labels anything.

A router was trained on cards in which expert k has the share p_k of the rows; its weights α are
posteriors under those. Where texts come in other shares q, the most likely ones are the fixed point
of (Saerens, Latinne and Decaestecker 2002)

    q_k ← mean over n of  (q_k / p_k) α_nk / Σ_j (q_j / p_j) α_nj
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec
import torch

import redhost

__all__ = ["LiveShares", "card_shares", "live_shares"]

SIZE = 2000
"""Texts that are looked back at."""
ROUNDS, CLOSE = 500, 1e-6


class LiveShares:
    """The weights of the last texts of one generation.

    Args:
        size: How many texts.
    """

    def __init__(self, size: int = SIZE) -> None:
        self._weights: deque[tuple[float, ...]] = deque(maxlen=size)
        self._columns: tuple[int | None, tuple[str, ...]] = (None, ())
        self._guard = threading.Lock()

    def add(self, answers: Sequence[redhost.Answer]) -> None:
        """Note what texts were weighed with; another generation begins anew."""
        with self._guard:
            for answer in answers:
                columns = answer.generation, tuple(answer.weights)
                if columns != self._columns:
                    self._columns = columns
                    self._weights.clear()
                self._weights.append(tuple(answer.weights.values()))

    def estimate(self, prior: Mapping[str, float]) -> tuple[dict[str, float], int]:
        """Return the share of each column, and of how many texts.

        Args:
            prior: The share of each in what the router was trained on.
        """
        with self._guard:
            columns, rows = self._columns[1], list(self._weights)
        if not rows or set(columns) != prior.keys():
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


def card_shares(model: redhost.ComposedModel, host: redhost.Host) -> dict[str, float]:
    """Return each column's share of the rows that a generation's router was trained on.

    Args:
        model: The generation; empty for one that is not published, or that has cards without rows.
        host: Its home.
    """
    if model.generation is None:
        return {}
    rows = {"backbone": len(model.background)}
    for member in host.generations.load(model.generation).experts:
        manifest = msgspec.json.decode(host.generations.store.file(member.digest, "expert.json"))
        rows[member.id] = manifest["card"].get("fit", 0)
    counts = {column: rows.get(column, 0) for column in model.bus.columns}
    total = sum(counts.values())
    return {c: n / total for c, n in counts.items()} if all(counts.values()) else {}
