"""The hook spec: the bus as a pluggy project.

Every hook but the last registers something under a name, and what redhost itself has is registered
in the same way, by `core.plugins.builtin`. Factories are called when a composition is made or
loaded; neither they nor pluggy run inside `forward`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pluggy

from ...registry.package.forms import INSIDE, OPEN, PLUGIN_FORMS, PLUGIN_TASKS

if TYPE_CHECKING:
    from torch import nn

    from ..backbones.backbone import Backbone
    from ..bus.experts import Expert
    from ..bus.head import Head
    from ..bus.unit import Unit
    from ..receipt import Receipt

    BackboneFactory = Callable[..., Backbone]
    NormFactory = Callable[..., nn.Module]
    RouterFactory = Callable[..., nn.Module]
    CombinerFactory = Callable[..., nn.Module]
    FormFactory = Callable[..., Expert]
    RecipeFactory = Callable[..., type[Any]]

T_contra = TypeVar("T_contra", contravariant=True)


class Register(Protocol[T_contra]):
    """Registers one thing under its name."""

    def __call__(self, name: str, value: T_contra, /) -> None:
        """Register it."""


class RegisterTask(Protocol):
    """See `core.tasks.register_task`."""

    def __call__(self, name: str, head: type[Head], *, unit: type[Unit[Any]] = ...) -> None:
        """Register one task."""


PROJECT = "redhost"
NORM, COMBINER = "layernorm", "residual"
"""The names of the norm and of the combiner that every bus has; a plugin's take their places."""

PLUGIN_ROUTERS: Mapping[str, str] = {
    **dict.fromkeys(("attention", "blend", "robust", "shortlist"), "robust"),
    **dict.fromkeys(("causal", "causal-mixture"), "generate"),
    "words": "words",
}
"""Router kind of a plugin of this project → the extra of redhost that installs it."""

OF_THIS_PROJECT: Mapping[str, Mapping[str, str]] = {
    "redhost_register_tasks": PLUGIN_TASKS,
    "redhost_register_forms": {**PLUGIN_FORMS, INSIDE: "peft"},
    "redhost_register_recipes": {**PLUGIN_FORMS, INSIDE: "peft", OPEN: "words"},
    "redhost_register_routers": PLUGIN_ROUTERS,
    "redhost_register_backbones": {"onnx": "onnx", "onnx-int8": "onnx"},
    "redhost_register_engines": {"ray": "ray"},
}
"""Hook → the names that plugins of this project register with it → the extra that installs each.
Such a plugin is imported when one of its names is asked for; others', whose names are not known, at
once."""


def extra_of(dist: str) -> str | None:
    """Return the extra that installs a plugin of this project that makes parts, else None."""
    extras = {extra for names in OF_THIS_PROJECT.values() for extra in names.values()}
    return next((extra for extra in extras if dist == f"redhost-{extra}"), None)


hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)
"""Marks a plugin's function as the implementation of the hook of the same name."""


class HookSpec:
    """Call ``register(name, factory)`` for each part; a factory takes the arguments it needs.

    Of a plugin and redhost the plugin's part is taken; two plugins with one name are an error.
    """

    @hookspec
    def redhost_register_backbones(self, register: Register[BackboneFactory]) -> None:
        """Register backbones by the `base.kind` of manifests, or by a device of their own.

        ``factory(manifest, files, device)`` returns a `redhost.Backbone` from a manifest and the
        bytes that were checked against it. Its fingerprint is compared with the manifest's.
        """

    @hookspec
    def redhost_register_norms(self, register: Register[NormFactory]) -> None:
        """Register the bus norm, under the name ``layernorm``, the only one there is.

        ``factory(bus)`` returns a module, h ``(B, D)`` → z ``(B, D)``.
        """

    @hookspec
    def redhost_register_routers(self, register: Register[RouterFactory]) -> None:
        """Register kinds of routers, which ``--router`` names.

        ``factory(kind, bus, columns, seed)`` returns an untrained router, z ``(B, D)`` → logits
        ``(B, K)``; `redhost.plugins.router_factory` makes one of a class and reads its options.
        """

    @hookspec
    def redhost_register_forms(self, register: Register[FormFactory]) -> None:
        """Register forms of experts, which manifests name.

        ``factory(manifest, tensors, files, bus)`` returns a `redhost.Expert` from its tensors, or
        from all files of its package; it raises a `ContractError` if they do not fit each other.
        Its canary is computed before it is used. ``inside`` is the name of what makes an expert of
        any form read or write at a block: ``factory(manifest, expert)``.
        """

    @hookspec
    def redhost_register_combiners(self, register: Register[CombinerFactory]) -> None:
        """Register what combines the experts' outputs, under ``residual``, the only name there is.

        ``factory(bus)`` returns a module like `redhost.plugins.Combiner`.
        """

    @hookspec
    def redhost_register_recipes(self, register: Register[RecipeFactory]) -> None:
        """Register how experts of a form are trained, under the form's name in a project's plan.

        ``factory(plan, backbone)`` returns a class derived from `Recipe`, whose draft describes the
        files of its package (`FormDraft`). Forms of redhost itself need none, but for experts that
        read or write at a block, whose recipe is called ``inside``. The recipe called ``open`` is
        taken where a plan names no form; if its `Recipe.opened` names one, that form's is taken.
        """

    @hookspec
    def redhost_register_tasks(self, register: RegisterTask) -> None:
        """Register tasks, which backbones name: call ``register(name, head, unit=unit)`` for each.

        A head is a class derived from `redhost.plugins.Head`, a unit one derived from
        `redhost.plugins.Unit`; by default a row is a whole text. Called when the plugin is loaded.
        Name classes of the plugin's module: the same are registered once for each host.
        """

    @hookspec
    def redhost_register_engines(self, register: Register[Any]) -> None:
        """Register engines, which ``--engine`` names.

        An engine is a `redhost_ray.jobs.Engine`: one method that carries out jobs. Called when an
        engine other than this process is asked for.
        """

    @hookspec
    def redhost_composed(self, receipt: Receipt) -> None:
        """Observe a published generation.

        Called after `recompose`, `attach`, `detach` and `replace` have published, never for a dry
        run. An exception raised here is logged, and the generation stays.
        """
