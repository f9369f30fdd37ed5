"""The part of the contract that has to be computed: canary, card, and what is left alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...registry.contract import VALUE
from ...registry.errors import CardError, PluginError
from ...registry.files import BackboneFiles, ExpertFiles
from ...registry.manifest import ExpertManifest
from ...registry.violations import Violation
from ..backbones.backbone import Backbone
from ..backbones.graft import check_taps, reader
from ..bus import BusConfig, LayerNorm
from ..evidence import ear_of, off_domain
from ..experts import Expert
from ..extending.assemble import Attached, background_of, make_backbone, make_expert
from ..extending.plugins import Plugins
from ..rows import BackgroundRow
from ..tasks import Classification, Generation, Regression, Task

__all__ = ["Quiet", "check_live", "check_off_domain", "measure_off_domain", "verify_expert"]

AGREEMENT = 0.02
"""How far the recomputed ‖W_c Δ‖ may be from the manifest's, relatively."""


def verify_expert(
    files: ExpertFiles, *, backbone: BackboneFiles | None, plugins: Plugins | None = None
) -> tuple[Violation, ...]:
    """Compute what a manifest promises: the canary, and ‖W_c Δ‖ on the background card.

    Args:
        files: The expert, statically sound.
        backbone: The backbone it fits; without one only the canary is computed.
        plugins: Who makes the parts; by default the environment's.
    """
    plugins = plugins or Plugins()
    manifest = files.manifest
    config = BusConfig(
        width=manifest.reads.width,
        labels=backbone.manifest.labels if backbone else (),
        task=_task(manifest),
    )
    try:
        made = make_expert(files, bus=config, plugins=plugins, providers={})
    except PluginError as e:
        return (Violation("form_unknown", "form", "a form somebody provides", str(e), e.hint),)
    except CardError as e:
        return (Violation("card_rows", "card", e.expected, e.found or str(e), e.hint),)
    if isinstance(made, Violation):
        return (made,)
    tapping = made.tapping
    if backbone is None or (manifest.off_domain is None and not tapping.taps):
        return ()
    live = make_backbone(backbone, plugins=plugins, providers={}, device="cpu")
    found = check_live(made, live, background_of(backbone), read=Quiet(live, encode=live.encode))
    return () if found is None else (found,)


def _task(manifest: ExpertManifest) -> Task:
    """Return the task an expert is for, as its manifest alone tells it."""
    if manifest.reads.causal:
        return Generation()
    return Regression() if manifest.labels == (VALUE,) else Classification()


class Quiet:
    """Background texts → z ``(N, D)``, computed once for all experts that are asked the same.

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
    attached: Attached,
    backbone: Backbone,
    background: Sequence[BackgroundRow],
    *,
    read: Callable[[Sequence[str]], Tensor],
) -> Violation | None:
    """Return what shows only with the backbone at hand: taps it has not, harm off the domain.

    Args:
        attached: The expert.
        backbone: The backbone.
        background: Its background card.
        read: Texts → z ``(N, D)``.
    """
    told = attached.files.manifest
    found = check_taps(told.id, backbone, reads=told.reads.tap, writes=told.writes.tap)
    return found or check_off_domain(attached, backbone, background, read=read)


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
        return float(off_domain(expert, read(texts), ear_of(backbone.classifier)).sqrt())


def check_off_domain(
    attached: Attached,
    backbone: Backbone,
    background: Sequence[BackgroundRow],
    *,
    read: Callable[[Sequence[str]], Tensor],
) -> Violation | None:
    """Return a violation if an expert does more to others' inputs than its manifest says.

    Args:
        attached: The expert.
        backbone: The backbone.
        background: Its background card.
        read: Texts → z ``(N, D)``; what an expert reads inside the trunk is computed here.
    """
    manifest = attached.files.manifest
    if manifest.off_domain is None:
        return None
    tapping = attached.tapping
    inside = reader(backbone, manifest.id, tapping) if tapping.taps else None

    def heard(texts: Sequence[str]) -> Tensor:
        return read(texts) if inside is None else inside(texts)[1]

    measured = measure_off_domain(tapping.part, manifest.id, backbone, background, read=heard)
    if measured is None or measured <= manifest.off_domain * (1 + AGREEMENT) + 1e-4:
        return None
    return Violation(
        "off_domain",
        "off_domain",
        f"at most {manifest.off_domain:.4g}, as its manifest says",
        f"{measured:.4g} on the backbone's background card",
        "The expert disturbs inputs that are not its own: ask its author for a new build.",
    )
