"""The distance of incoming texts from the rows of each expert's card; no text is kept."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Callable

import msgspec
import torch
from torch import Tensor

import redhost
from redhost.plugins import Moments

__all__ = ["Drift", "RecentMoments", "drift_from", "faded", "moments_of"]

MOST = 2000


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """The drift of one expert's texts.

    Attributes:
        texts: Number of texts it was estimated from.
        distance: Between their mean and that of the card's rows, in standard deviations of the
            rows.
    """

    texts: int
    distance: float


class RecentMoments:
    """Sums over the last texts that a generation answered.

    Args:
        most: Number of an expert's texts that count in full; older ones are discounted.
    """

    def __init__(self, *, most: float = MOST) -> None:
        self.most = most
        self._model: weakref.ref[redhost.ComposedModel] | None = None
        self._seen: Moments | None = None
        self._guard = threading.Lock()

    def observer(self, model: redhost.ComposedModel) -> Callable[[Tensor, Tensor], None] | None:
        """Return an observer of a generation's texts; another generation resets the sums.

        Returns:
            The observer; None if the generation has no sums of its cards.
        """
        if model.moments is None:
            return None

        def observe(h: Tensor, alpha: Tensor) -> None:
            seen = moments_of(model.bus, h, alpha)
            with self._guard:
                before = self._seen if self._answering() is model else None
                # A weak reference, so that a replaced generation is freed before the next text.
                self._model = weakref.ref(model)
                self._seen = faded(seen if before is None else before + seen, self.most)

        return observe

    def drift(self) -> dict[str, Drift]:
        """Return the drift by expert, for those with at least two texts."""
        with self._guard:
            model, seen = self._answering(), self._seen
        if model is None or seen is None or model.moments is None:
            return {}
        distances = drift_from(seen, model.moments).tolist()
        found = zip(model.bus.ids, seen.rows.tolist(), distances, strict=True)
        return {i: Drift(texts=round(n), distance=d) for i, n, d in found if math.isfinite(d)}

    def _answering(self) -> redhost.ComposedModel | None:
        return None if self._model is None else self._model()


def moments_of(bus: redhost.Bus, h: Tensor, alpha: Tensor) -> Moments:
    """Return the moments of answered texts, each counted for its highest-weighted expert.

    Args:
        bus: The bus.
        h: Features ``(N, D)``.
        alpha: The weights ``(N, K)``; a text whose largest is the backbone's is not counted.
    """
    experts, heaviest = len(bus.ids), alpha.argmax(-1)
    counted = heaviest < experts
    z, group = bus.layout.router_input(bus.norm(h[counted])).double(), heaviest[counted]
    return Moments(
        rows=group.bincount(minlength=experts).double(),
        sums=z.new_zeros(experts, z.shape[-1]).index_add(0, group, z),
        squares=z.new_zeros(experts).index_add(0, group, z.square().sum(-1)),
    )


def faded(moments: Moments, most: float) -> Moments:
    """Return moments scaled to at most so many rows per domain; old rows count less."""
    keep = (most / moments.rows).clamp_max(1)
    return Moments(
        rows=moments.rows * keep, sums=moments.sums * keep[:, None], squares=moments.squares * keep
    )


def drift_from(live: Moments, card: Moments) -> Tensor:
    """Return d ``(E,)``; 0 if the estimate of d² is negative, NaN with fewer than two rows."""
    (m, w), (mu, v) = _mean_and_spread(live), _mean_and_spread(card)
    off = (m - mu).square().sum(-1) - w / live.rows - v / card.rows
    measurable = (live.rows > 1) & (card.rows > 1) & (v > 0)
    return torch.where(measurable, (off / v).clamp_min(0).sqrt(), torch.nan)


def _mean_and_spread(moments: Moments) -> tuple[Tensor, Tensor]:
    """Return the mean ``(E, W)`` and E‖z − mean‖² ``(E,)``, with the divisor n − 1."""
    rows, sums = moments.rows.double(), moments.sums.double()
    mean = sums / rows[:, None]
    within = moments.squares.double() - rows * mean.square().sum(-1)
    return mean, within.clamp_min(0) / (rows - 1)
