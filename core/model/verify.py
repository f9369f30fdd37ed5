"""The computed part of the contract: canary, card, and harm outside the expert's domain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ...registry.package.checked import Violation
from ..backbones.backbone import Backbone
from ..backbones.interventions import InTrunk
from ..backbones.interventions.layout import (
    bus_part,
    check_inside,
    inside_reader,
    read_tokens,
)
from ..bus.bus import LayerNorm
from ..bus.evidence import off_domain_norm, readout_factor
from ..bus.experts import Expert
from ..routers.cards import Card, column_data
from ..routers.domain_statistics import within_covariance
from ..types import BackgroundRow
from . import canary
from .build import LoadedExpert

AGREEMENT = 0.02
"""Relative tolerance between the recomputed ‖W_c Δ‖ and the manifest's."""


class CachedBusEncoder:
    """Background texts → z ``(N, D)``, computed once for all experts with the same texts.

    Args:
        backbone: The backbone whose norm is applied.
        encode: Texts → h ``(N, D)``.
    """

    def __init__(self, backbone: Backbone, *, encode: Callable[[Sequence[str]], Tensor]) -> None:
        self.norm = LayerNorm(width=backbone.width, eps=backbone.eps)
        self.encode = encode
        self._known: dict[tuple[str, ...], Tensor] = {}

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return z of texts; few different lists occur, as they leave out one domain at most."""
        key = tuple(texts)
        if key not in self._known:
            self._known[key] = self.norm(self.encode(texts))
        return self._known[key]


def check_live(
    loaded: LoadedExpert,
    backbone: Backbone,
    background: Sequence[BackgroundRow],
    *,
    read: Callable[[Sequence[str]], Tensor],
    learnt: bool = False,
) -> Violation | None:
    """Return a violation that only the backbone can reveal: card, taps, harm off the domain.

    Args:
        loaded: The expert.
        backbone: The backbone.
        background: Its background card.
        read: Texts → z ``(N, D)``; inputs inside the trunk are computed here.
        learnt: Whether a router was already trained from these very bytes.
    """
    manifest, expert = loaded.files.manifest, loaded.expert
    if not learnt and (violation := check_card(loaded.card, backbone)):
        return violation
    if isinstance(expert, InTrunk):
        if violation := check_inside(expert, backbone) or check_tokens(loaded, backbone):
            return violation
        read = inside_reader(backbone, manifest.id, expert)
        expert = bus_part(expert, backbone)
    if manifest.off_domain is None:
        return None
    measured = measure_off_domain(expert, manifest.id, backbone, background, read=read)
    agreement = AGREEMENT + backbone.trunk.tolerance  # the author computed in float32
    if measured is None or measured <= manifest.off_domain * (1 + agreement) + 1e-4:
        return None
    return Violation(
        "off_domain",
        "off_domain",
        f"at most {manifest.off_domain:.4g}, as its manifest says",
        f"{measured:.4g} on the backbone's background card",
        "The expert disturbs inputs that are not its own: ask its author for a new build.",
    )


def check_tokens(loaded: LoadedExpert, backbone: Backbone) -> Violation | None:
    """Return a violation if an expert's output on its canary's tokens, if any, differs."""
    files, trunk = loaded.files, backbone.trunk
    return canary.check_tokens(
        files.manifest,
        files.canary,
        vocabulary=int(trunk.model.config.vocab_size),
        read=partial(read_tokens, loaded.expert, backbone),
    )


def check_card(card: Card, backbone: Backbone) -> Violation | None:
    """Return why no router can be trained from a card, considered by itself; None if one can.

    Args:
        card: The card.
        backbone: The backbone whose tokenizer reads the texts.

    Raises:
        UsageError: If a text has no tokens.
    """
    backbone.require_tokens(row.text for row in card.rows)
    if card.kind in {"none", "texts"} or card.statistics is not None:
        return None  # the norm bounds the features of texts; sums were checked when parsed
    statistics = column_data(card, encode_z=backbone.encode, seed=0).statistics
    factor, failed = torch.linalg.cholesky_ex(within_covariance([statistics]))
    if not int(failed) and bool(factor.isfinite().all()):
        return None
    hint = "Ask its author for a new build."
    return Violation("card_rows", "card", "rows with a covariance", "sums of no rows", hint)


def measure_off_domain(
    expert: Expert,
    expert_id: str,
    backbone: Backbone,
    background: Sequence[BackgroundRow],
    *,
    read: Callable[[Sequence[str]], Tensor],
) -> float | None:
    """Return √ mean ‖W_c Δ(z)‖² over the background rows outside the expert's own domain.

    The result is None without such rows, or for an expert with labels of its own.

    Args:
        expert: The expert as on the bus.
        expert_id: Its id.
        backbone: The backbone.
        background: The background card.
        read: Texts → what the expert reads ``(N, D)``.
    """
    texts = [r.text for r in background if r.domain != expert_id]
    if not texts or backbone.classifier is None or expert.writes.own_labels:
        return None
    with torch.inference_mode():
        return float(
            off_domain_norm(expert, read(texts), readout_factor(backbone.classifier)).sqrt()
        )
