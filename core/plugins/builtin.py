"""The built-in parts of the bus, as the first plugin: an example of what a plugin is."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ...registry.package.manifest import BackboneManifest
from .. import routers
from ..backbones.backbone import Backbone
from ..bus import experts
from ..bus.bus import BusConfig, LayerNorm
from .hooks import hookimpl


@hookimpl
def redhost_make_backbone(
    manifest: BackboneManifest, files: Mapping[str, bytes], device: str
) -> Backbone:
    """Make a frozen Hugging Face encoder: carried, from a hub, or from a GGUF file."""
    return Backbone.from_package(manifest, files, device=device)


@hookimpl
def redhost_make_norm(bus: BusConfig) -> nn.Module:
    """Make a LayerNorm without learned affine."""
    return LayerNorm(width=bus.width, eps=bus.eps)


# Named through their modules: pluggy takes every marked function of this one for a hook.
redhost_make_router = hookimpl(routers.build_router)
redhost_make_expert = hookimpl(experts.build_expert)
