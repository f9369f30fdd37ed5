"""The part of the contract that has to be computed: canary, card, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from ...registry.errors import BackboneMismatchError, CardError, PluginError
from ...registry.package.checked import Violation
from ...registry.package.readers import BackboneFiles, ExpertFiles
from ..backbones.backbone import Backbone
from ..backbones.interventions.layout import (
    acts_inside,
    bus_part,
    check_inside,
    check_taps,
    inside_reader,
    read_tokens,
)
from ..bus.bus import BusConfig, LayerNorm
from ..bus.evidence import off_domain_norm, readout_factor
from ..bus.experts import Expert
from ..bus.tasks import expert_task
from ..plugins.manager import Plugins
from ..routers.cards import Card, column_data
from ..routers.domain_statistics import within_covariance
from ..types import BackgroundRow
from . import canary
from .build import LoadedExpert, make_backbone, make_expert, rows_of

AGREEMENT = 0.02
"""How far the recomputed ‖W_c Δ‖ may be from the manifest's, relatively."""


def verify_expert(
    files: ExpertFiles, *, backbone: BackboneFiles | None, plugins: Plugins | None = None
) -> tuple[Violation, ...]:
    """Compute what a manifest promises: the canary, and ‖W_c Δ‖ on the background card.

    An expert of several ranks is held to it at each of them.

    Args:
        files: The expert, statically valid.
        backbone: The backbone it fits; without one only the canary is computed.
        plugins: Who makes the parts; by default the environment's.
    """
    plugins = plugins or Plugins()
    manifest = files.manifest
    config = BusConfig(
        width=manifest.reads.width,
        labels=backbone.manifest.labels if backbone else (),
        task=expert_task(manifest, backbone.manifest if backbone else None),
    )
    loaded = list[LoadedExpert]()
    try:
        for rank in (None, *manifest.smaller_ranks):
            served = replace(files, rank=rank)
            made = make_expert(served, bus=config, plugins=plugins, providers={})
            if made.value is None:
                return made.violations
            loaded.append(made.value)
    except PluginError as e:
        return (Violation("form_unknown", "form", "a form of a trusted plugin", e.reason, e.hint),)
    except CardError as e:
        return (Violation("card_rows", "card", e.expected, e.found or e.problem, e.hint),)
    if backbone is None:
        return ()
    live = make_backbone(backbone, plugins=plugins, providers={}, device="cpu")
    read = CachedBusEncoder(live, encode=live.encode)
    background = rows_of(backbone, BackgroundRow)
    found = (check_live(each, live, background, read=read) for each in loaded)
    return tuple(violation for violation in found if violation is not None)[:1]


def verify_backbone(
    files: BackboneFiles, *, plugins: Plugins | None = None
) -> tuple[Violation, ...]:
    """Open a backbone and compute its fingerprint, which experts name.

    Args:
        files: The backbone, statically valid.
        plugins: Who makes it; by default the environment's.
    """
    try:
        make_backbone(files, plugins=plugins or Plugins(), providers={}, device="cpu")
    except BackboneMismatchError as e:
        return (Violation("backbone_mismatch", "fingerprint", e.expected, e.found, e.hint),)
    return ()


class CachedBusEncoder:
    """Background texts → z ``(N, D)``, computed once for all experts that need the same.

    Args:
        backbone: Whose norm it is.
        encode: Texts → h ``(N, D)``.
    """

    def __init__(self, backbone: Backbone, *, encode: Callable[[Sequence[str]], Tensor]) -> None:
        self.norm = LayerNorm(width=backbone.width, eps=backbone.eps)
        self.encode = encode
        self._known: dict[tuple[str, ...], Tensor] = {}

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return z of texts; they are few lists, as only an expert's own domain is left out."""
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
    """Return what shows only with the backbone at hand: a card, taps, harm off the domain.

    Args:
        loaded: The expert.
        backbone: The backbone.
        background: Its background card.
        read: Texts → z ``(N, D)``; what an expert reads inside the trunk is computed here.
        learnt: Whether a router learnt from these very bytes before.
    """
    manifest, expert = loaded.files.manifest, loaded.expert
    violation = None if learnt else check_card(loaded.card, backbone)
    if violation is not None:
        return violation
    if acts_inside(expert):
        violation = check_taps(
            manifest.id, backbone, reads=manifest.reads.tap, writes=manifest.writes.tap
        ) or check_inside(expert, backbone)
        if violation is not None:
            return violation
        violation = check_tokens(loaded, backbone) if manifest.adapter else None
        if violation is not None:
            return violation
        read = inside_reader(backbone, manifest.id, expert)
        expert = bus_part(expert, backbone)
    if manifest.off_domain is None:
        return None
    measured = measure_off_domain(expert, manifest.id, backbone, background, read=read)
    agreement = AGREEMENT + backbone.trunk.tolerance  # the author's figure is of float32
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
    """Return whether an adapter computes of its canary's tokens what its author saw."""
    files, trunk = loaded.files, backbone.trunk
    return canary.check_tokens(
        files.manifest,
        files.canary,
        vocabulary=int(trunk.model.config.vocab_size),
        read=partial(read_tokens, loaded.expert, backbone),
    )


def check_card(card: Card, backbone: Backbone) -> Violation | None:
    """Return why no router can learn from a card, looked at by itself.

    Args:
        card: The card.
        backbone: Whose tokenizer reads its texts.

    Raises:
        UsageError: If a text has no tokens.
    """
    backbone.require_tokens(row.text for row in card.rows)
    if card.kind in {"none", "texts"} or card.statistics is not None:
        return None  # the norm bounds what becomes of texts; sums were checked when they were read
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

    None where there is nothing to measure: no such rows, or an expert with labels of its own.

    Args:
        expert: As the bus has it.
        expert_id: Its id.
        backbone: The backbone.
        background: The background card.
        read: Texts → what the expert reads ``(N, D)``.
    """
    texts = [r.text for r in background if r.domain != expert_id]
    if not texts or backbone.classifier is None or expert.space == "labels":
        return None
    with torch.inference_mode():
        return float(
            off_domain_norm(expert, read(texts), readout_factor(backbone.classifier)).sqrt()
        )
