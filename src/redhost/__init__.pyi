from . import errors, plugins, testing
from .core.backbones.backbone import Backbone
from .core.bus.bus import Bus, BusConfig
from .core.bus.experts import Expert
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
    "Receipt",
    "RedhostError",
    "Router",
    "Row",
    "UsageError",
    "errors",
    "hookimpl",
    "plugins",
    "testing",
]

__version__: str
