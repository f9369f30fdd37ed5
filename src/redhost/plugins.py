"""Building blocks of plugins: routers and their training data, expert forms, states and leases."""

from .core.backbones.interventions import Intervention, hooked
from .core.bus.bus import LayerNorm
from .core.bus.combiner import Combiner
from .core.bus.evidence import off_domain_norm
from .core.bus.experts import ClassifierExpert, Expert, Linear, LowRank
from .core.bus.head import Head
from .core.bus.signals import RouterSignals, router_signal
from .core.bus.task import Task
from .core.bus.unit import Unit
from .core.composition.select import Installed
from .core.model.composed import Observe, shared_features
from .core.model.moments import Moments
from .core.model.questions import Questions
from .core.model.route import Route
from .core.plugins.hooks import hookimpl
from .core.plugins.manager import Plugins, PluginState
from .core.routers import build_router, router_factory
from .core.routers.base import ColumnData, Router, as_router
from .core.routers.cards import Card
from .core.routers.domain_statistics import Statistics
from .core.routers.statistics import StatisticsRouter
from .core.tasks import make_task, register_task
from .core.training.router import RouterSettings, train_router
from .registry.environment import python_command
from .registry.environment.status import PackageStatus
from .registry.home.composition import Composition
from .registry.home.generations import Generations
from .registry.home.live_shares import LiveShares, write_live_shares
from .registry.home.locks import Leases

__all__ = [
    "Card",
    "ClassifierExpert",
    "ColumnData",
    "Combiner",
    "Composition",
    "Expert",
    "Generations",
    "Head",
    "Installed",
    "Intervention",
    "LayerNorm",
    "Leases",
    "Linear",
    "LiveShares",
    "LowRank",
    "Moments",
    "Observe",
    "PackageStatus",
    "PluginState",
    "Plugins",
    "Questions",
    "Route",
    "Router",
    "RouterSettings",
    "RouterSignals",
    "Statistics",
    "StatisticsRouter",
    "Task",
    "Unit",
    "as_router",
    "build_router",
    "hooked",
    "hookimpl",
    "make_task",
    "off_domain_norm",
    "python_command",
    "register_task",
    "router_factory",
    "router_signal",
    "shared_features",
    "train_router",
    "write_live_shares",
]
