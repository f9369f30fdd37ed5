"""Building blocks of plugins: parts of the bus, tasks, questions, generations and leases."""

from .core.backbones.encoder import TextEncoder, blocks_of
from .core.backbones.engines import EngineEncoder
from .core.backbones.interventions import Intervention, hooked
from .core.bus.combiner import Combiner
from .core.bus.head import Head
from .core.bus.signals import RouterSignals, router_signal
from .core.bus.unit import Unit
from .core.composition.prior import LiveShares, write_live_shares
from .core.composition.select import Installed
from .core.model.composed import Observe, shared_features
from .core.model.moments import Moments
from .core.model.questions import Questions
from .core.model.route import Route
from .core.plugins.manager import Plugins
from .core.routers import router_factory
from .core.routers.base import ColumnData
from .core.tasks import make_task, register_task
from .core.training.rows import read_rows
from .registry.environment import python_command
from .registry.home.composition import Composition
from .registry.home.generations import Generations
from .registry.home.locks import Leases

__all__ = [
    "ColumnData",
    "Combiner",
    "Composition",
    "EngineEncoder",
    "Generations",
    "Head",
    "Installed",
    "Intervention",
    "Leases",
    "LiveShares",
    "Moments",
    "Observe",
    "Plugins",
    "Questions",
    "Route",
    "RouterSignals",
    "TextEncoder",
    "Unit",
    "blocks_of",
    "hooked",
    "make_task",
    "python_command",
    "read_rows",
    "register_task",
    "router_factory",
    "router_signal",
    "shared_features",
    "write_live_shares",
]
