"""The built-in parts of the bus, as the first plugin: an example of what a plugin is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ...registry.manifest import BackboneManifest, ExpertManifest
from ..backbones.backbone import Backbone
from ..bus import BusConfig, LayerNorm
from ..engines.local import LocalEngine
from ..experts import build_expert
from ..routers import build_router
from .hooks import hookimpl

__all__ = [
    "redhost_make_backbone",
    "redhost_make_expert",
    "redhost_make_norm",
    "redhost_make_router",
    "redhost_register_engines",
]


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


@hookimpl
def redhost_make_router(
    kind: str, bus: BusConfig, columns: tuple[str, ...], seed: int
) -> nn.Module | None:
    """Make a router of a built-in kind; see `routers.KINDS`."""
    return build_router(kind, bus, columns, seed)


@hookimpl
def redhost_make_expert(
    manifest: ExpertManifest, tensors: Mapping[str, Tensor]
) -> nn.Module | None:
    """Make a `residual`, `linear` or `mlp` expert."""
    return build_expert(manifest, tensors)


@hookimpl
def redhost_register_engines(register: Callable[[str, Any], None]) -> None:
    """Register `local`: this machine's processes."""
    register("local", LocalEngine())
