"""The hook spec: the bus as a pluggy project.

Four factories build the parts of a bus, once, at composition time; pluggy never runs inside
`forward`. The built-in parts are registered first, as an ordinary plugin
(`core.plugins.builtin`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ...registry.package.manifest import BackboneManifest, ExpertManifest
    from ..backbones.backbone import Backbone
    from ..bus.bus import BusConfig
    from ..receipt import Receipt


PROJECT = "redhost"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's function as the implementation of the hook of the same name."""


class HookSpec:
    """The hooks a plugin can implement. Take only the arguments you need; None means 'not mine'."""

    @hookspec(firstresult=True)
    def redhost_make_backbone(
        self, manifest: BackboneManifest, files: Mapping[str, bytes], device: str
    ) -> Backbone | None:
        """Make a backbone from its manifest and the bytes checked against it.

        Called when a backbone is opened: to compose on it, to load a generation, to train or to
        check an expert. The fingerprint is compared with the manifest's for any provider.
        """

    @hookspec(firstresult=True)
    def redhost_make_norm(self, bus: BusConfig) -> nn.Module | None:
        """Make the bus norm, h ``(B, D)`` → z ``(B, D)``.

        Called once for each composition that is made or loaded.
        """

    @hookspec(firstresult=True)
    def redhost_make_router(
        self, kind: str, bus: BusConfig, columns: tuple[str, ...], seed: int
    ) -> nn.Module | None:
        """Make an untrained router of a kind, z ``(B, D)`` → logits ``(B, K)``.

        Called once for each composition that is made, loaded, or tried by an evaluation, with the
        kind that was requested. Training, or loading of stored weights, happens afterwards.
        """

    @hookspec(firstresult=True)
    def redhost_make_expert(
        self,
        manifest: ExpertManifest,
        tensors: Mapping[str, Tensor],
        files: Mapping[str, bytes],
        bus: BusConfig,
    ) -> nn.Module | None:
        """Make an expert of the manifest's form from its tensors, or from all files of its package.

        Called for each expert that is checked, composed or loaded, before its canary is computed.
        The result must be a `redhost.Expert`.
        """

    @hookspec
    def redhost_register_engines(self, register: Callable[[str, Any], None]) -> None:
        """Register engines, which run jobs: call ``register(name, engine)`` for each.

        An engine is a `redhost.jobs.Engine`: one method that carries out jobs. Called when an
        engine other than this process is asked for.
        """

    @hookspec
    def redhost_composed(self, receipt: Receipt) -> None:
        """Observe a published generation.

        Called after `recompose`, `attach`, `detach` and `replace` have published, never for a dry
        run. An exception raised here is logged, and the generation stays.
        """
