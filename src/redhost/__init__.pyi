from . import authoring, errors, plugins, testing
from .core.backbones.backbone import Backbone
from .core.bus.bus import Bus, BusConfig, Readout
from .core.bus.experts import Expert
from .core.composition.options import RecomposeOptions
from .core.composition.publish import RecomposeResult
from .core.composition.recompose import compose
from .core.evaluation.evaluate import Evaluation
from .core.host import Host
from .core.live import Live
from .core.model.composed import Answer, ComposedModel
from .core.plugins.hooks import hookimpl
from .core.receipt import Receipt
from .core.routers.base import Router
from .core.types import Row
from .registry.errors import MissingError, RedhostError, UsageError

__all__ = [
    "Answer",
    "Backbone",
    "Bus",
    "BusConfig",
    "ComposedModel",
    "Evaluation",
    "Expert",
    "Host",
    "Live",
    "MissingError",
    "Readout",
    "Receipt",
    "RecomposeOptions",
    "RecomposeResult",
    "RedhostError",
    "Router",
    "Row",
    "UsageError",
    "authoring",
    "compose",
    "errors",
    "hookimpl",
    "plugins",
    "testing",
]

__version__: str
