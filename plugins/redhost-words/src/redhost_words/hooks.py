"""The plugin's hooks: the form ``words``, how it is trained, and the router of the same name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from redhost import hookimpl

if TYPE_CHECKING:
    from collections.abc import Mapping

    from redhost_author.training.recipe import Recipe

    from redhost import BusConfig, Router
    from redhost.core.plugins.hooks import FormFactory, RecipeFactory, Register, RouterFactory
    from redhost.registry.package.manifest import ExpertManifest

    from .expert import WordsExpert

__all__ = [
    "redhost_register_forms",
    "redhost_register_recipes",
    "redhost_register_routers",
]


@hookimpl
def redhost_register_forms(register: Register[FormFactory]) -> None:
    """An expert that reads words."""
    register("words", _expert)


@hookimpl
def redhost_register_recipes(register: Register[RecipeFactory]) -> None:
    """The training of such an expert, which is also the usual one on backbones of text."""
    register("words", _recipe)
    register("open", _open)


@hookimpl
def redhost_register_routers(register: Register[RouterFactory]) -> None:
    """The router that reads counts."""
    register("words", _router)


def _expert(manifest: ExpertManifest, files: Mapping[str, bytes]) -> WordsExpert:
    from .expert import build_words  # imported only if used

    return build_words(manifest, files)


def _recipe() -> type[Recipe]:
    from .recipe import WordsRecipe

    return WordsRecipe


def _open() -> type[Recipe]:
    from .open_form import OpenRecipe

    return OpenRecipe


def _router(kind: str, bus: BusConfig, columns: tuple[str, ...], seed: int) -> Router:
    from redhost.plugins import router_factory

    from .router import WordsRouter

    return router_factory(WordsRouter)(kind, bus, columns, seed)
