"""The plugin's hooks: experts of the form ``lora``, and how experts inside blocks are trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redhost.plugins import hookimpl
from redhost.registry.package.forms import INSIDE

from .package import FORM

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redhost.core.backbones.backbone import Backbone
    from redhost.core.plugins.hooks import FormFactory, RecipeFactory, Register
    from redhost.core.training.recipe import Recipe
    from redhost.registry.package.manifest import ExpertManifest

    from .lora import LoraExpert

__all__ = ["redhost_register_forms", "redhost_register_recipes"]


@hookimpl
def redhost_register_forms(register: Register[FormFactory]) -> None:
    """The expert of an adapter."""
    register(FORM, _expert)


@hookimpl
def redhost_register_recipes(register: Register[RecipeFactory]) -> None:
    """The training of an adapter, and of experts that write to a block."""
    register(FORM, _adapter)
    register(INSIDE, _inside)


def _expert(manifest: ExpertManifest, files: Mapping[str, bytes]) -> LoraExpert:
    from .lora import build_lora  # imported only if used

    return build_lora(manifest, files)


def _adapter() -> type[Recipe]:
    from .adapter import TrainedAdapterRecipe

    return TrainedAdapterRecipe


def _inside(backbone: Backbone) -> type[Recipe]:
    from redhost.core.training.recipe import Recipe

    from .graft import GraftRecipe

    return Recipe if backbone.task.unit.generates else GraftRecipe
