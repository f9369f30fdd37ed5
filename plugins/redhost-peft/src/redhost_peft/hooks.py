"""The plugin's hooks: experts of the form ``lora``, and how experts inside blocks are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redhost import hookimpl
from redhost.registry.package.forms import INSIDE

from .package import FORM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redhost_author.training.recipe import Recipe

    from redhost.core.backbones.backbone import Backbone
    from redhost.core.bus.experts import Expert
    from redhost.core.plugins.hooks import FormFactory, RecipeFactory, Register
    from redhost.registry.package.manifest import ExpertManifest

    from .lora import LoraExpert

__all__ = ["redhost_register_forms", "redhost_register_recipes"]


@hookimpl
def redhost_register_forms(register: Register[FormFactory]) -> None:
    """The expert of an adapter, and any expert that reads or writes at a block."""
    register(FORM, _expert)
    register(INSIDE, _at_blocks)


@hookimpl
def redhost_register_recipes(register: Register[RecipeFactory]) -> None:
    """The training of an adapter, and of experts that read or write at a block."""
    register(FORM, _adapter)
    register(INSIDE, _inside)


def _expert(manifest: ExpertManifest, files: Mapping[str, bytes]) -> LoraExpert:
    from .lora import build_lora  # imported only if used

    return build_lora(manifest, files)


def _at_blocks(manifest: ExpertManifest, expert: Expert) -> Expert:
    from redhost.core.backbones.interventions import InTrunk

    from .inside import InsideExpert

    if isinstance(expert, InTrunk):  # its form has an intervention of its own
        return expert
    return InsideExpert(
        expert, name=manifest.id, reads=manifest.reads.tap, writes=manifest.writes.tap
    )


def _adapter() -> type[Recipe]:
    from .adapter import TrainedAdapterRecipe

    return TrainedAdapterRecipe


def _inside(backbone: Backbone) -> type[Recipe]:
    from redhost_author.training.recipe import Recipe

    from .inside import InsideRecipe

    return Recipe if backbone.task.unit.generates else InsideRecipe
