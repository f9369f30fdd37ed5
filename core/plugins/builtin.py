"""The built-in parts of the bus, as the first plugin and an example of one."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from ...registry.package.manifest import BackboneManifest, ExpertManifest
from .. import routers
from ..backbones.backbone import Backbone
from ..backbones.interventions import lora
from ..bus import experts
from ..bus.bus import BusConfig, LayerNorm
from .hooks import hookimpl


@hookimpl
def redhost_make_backbone(
    manifest: BackboneManifest, files: Mapping[str, bytes], device: str
) -> Backbone:
    """Make a frozen Hugging Face encoder: from the package, from a hub, or from a GGUF file."""
    return Backbone.from_package(manifest, files, device=device)


@hookimpl
def redhost_make_norm(bus: BusConfig) -> nn.Module:
    """Make a LayerNorm without learned affine."""
    return LayerNorm(width=bus.width, eps=bus.eps)


@hookimpl
def redhost_make_expert(
    manifest: ExpertManifest, tensors: Mapping[str, Tensor], files: Mapping[str, bytes]
) -> experts.Expert | None:
    """Make an expert of a built-in form, or that of an adapter."""
    if manifest.adapter:
        return lora.build_lora(manifest, files)
    return experts.build_expert(manifest, tensors)


# Imported as a module: pluggy takes every marked function in this one for a hook.
redhost_make_router = hookimpl(routers.build_router)
