"""The built-in parts of the bus, as the first plugin and an example of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...registry.package.forms import FORMS
from ..backbones.backbone import Backbone
from ..bus.bus import LayerNorm
from ..bus.combiner import ResidualSum
from ..bus.experts import build_expert
from ..routers import KINDS, router_factory
from .hooks import COMBINER, NORM, hookimpl

if TYPE_CHECKING:
    from .hooks import (
        BackboneFactory,
        CombinerFactory,
        FormFactory,
        NormFactory,
        Register,
        RouterFactory,
    )


@hookimpl
def redhost_register_backbones(register: Register[BackboneFactory]) -> None:
    """A frozen Hugging Face encoder: from a package, from a hub, or from a GGUF file."""
    for kind in ("carried", "dist", "hub", "file"):
        register(kind, Backbone.from_package)


@hookimpl
def redhost_register_norms(register: Register[NormFactory]) -> None:
    """A LayerNorm without learned affine."""
    register(NORM, lambda bus: LayerNorm(width=bus.width, eps=bus.eps))


@hookimpl
def redhost_register_routers(register: Register[RouterFactory]) -> None:
    """Every kind in `core/routers`."""
    for kind in KINDS:
        register(kind.kind, router_factory(kind))


@hookimpl
def redhost_register_forms(register: Register[FormFactory]) -> None:
    """Every form in `registry/package/forms.py`."""
    for form in FORMS:
        register(form, build_expert)


@hookimpl
def redhost_register_combiners(register: Register[CombinerFactory]) -> None:
    """The residual sum."""
    register(COMBINER, ResidualSum)
