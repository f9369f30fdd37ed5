"""redhost: `pip install` an expert; only the router is retrained, and nothing else moves.

Everything public is here, and loaded when first used: ``import redhost`` does not import torch.
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .core.answering.composed import Answer, Composed
    from .core.authoring.adapt import AdaptSettings, adapt, delta
    from .core.authoring.author import train_package
    from .core.authoring.card_files import (
        CardFile,
        no_card,
        statistics_card,
        texts_card,
        vectors_card,
    )
    from .core.authoring.expert_run import ExpertSettings, TrainedExpert
    from .core.authoring.new_backbone import new_backbone
    from .core.authoring.open_shop import open_shop
    from .core.authoring.packaging import save_backbone, save_expert
    from .core.authoring.parts import Parts, split_rows
    from .core.authoring.shop import Shop
    from .core.authoring.tables import read_documents, read_table
    from .core.authoring.train_expert import Rows, train_expert
    from .core.backbones.backbone import Backbone
    from .core.backbones.features import FeatureCache
    from .core.backbones.trunk import Trunk, blocks_of
    from .core.bus import Bus, BusConfig, LayerNorm
    from .core.composing.bench import Order
    from .core.composing.recompose import Outcome
    from .core.composing.selection import Installed
    from .core.composing.verify import measure_off_domain
    from .core.composing.workspace import compose, open_backbone
    from .core.engines.crew import Crew, Failure, choose_crew
    from .core.engines.engine import Engine, Job, JobResult, Jobs, run_job
    from .core.engines.kept import Kept
    from .core.engines.sweep import Swept, sweep
    from .core.evidence import off_domain
    from .core.experts import Expert, Linear, LowRank, OwnHead
    from .core.extending.hooks import hookimpl
    from .core.extending.plugins import Plugins, PluginState
    from .core.generate.author import train_generator
    from .core.generate.context import context_layout, contexts
    from .core.generate.decode import Token, Walk, generate
    from .core.generate.documents import split_documents
    from .core.generate.spelling import byte_counts
    from .core.host import Host
    from .core.learning.train_router import RouterSettings, train_router
    from .core.live import Live
    from .core.measuring.evaluate import Evaluation, columns_data, evaluate, hits_by_system
    from .core.measuring.outside import Outside, judge_outside
    from .core.receipt import Receipt
    from .core.routers import ColumnData, Judged, Router, StatisticsRouter, build_router
    from .core.rows import BackgroundRow, CardRow, Row, write_rows
    from .core.statistics import Statistics
    from .core.tasks import Classification, Generation, Regression
    from .core.versions import library_versions
    from .registry.errors import (
        BackboneMismatchError,
        CanaryError,
        CardError,
        CompositionError,
        ContractError,
        HarmError,
        InstallError,
        IntegrityError,
        JobsError,
        LockHeldError,
        ManifestError,
        MissingError,
        PluginError,
        RedhostError,
        SettingsError,
        StaleGenerationError,
        StoreError,
        SwapInProgressError,
        UnknownNameError,
        UsageError,
    )
    from .registry.leases import Lease, Leases
    from .registry.manifest import BackboneRef, Base, ExpertManifest, Training
    from .registry.project import ExpertPlan
    from .registry.scaffold import write_project
    from .registry.states import Listing
    from .registry.violations import Violation

_HOME = {
    "core.answering.composed": ("Answer", "Composed"),
    "core.authoring.adapt": ("AdaptSettings", "adapt", "delta"),
    "core.authoring.author": ("train_package",),
    "core.authoring.card_files": (
        "CardFile",
        "no_card",
        "statistics_card",
        "texts_card",
        "vectors_card",
    ),
    "core.authoring.expert_run": ("ExpertSettings", "TrainedExpert"),
    "core.authoring.new_backbone": ("new_backbone",),
    "core.authoring.open_shop": ("open_shop",),
    "core.authoring.packaging": ("save_backbone", "save_expert"),
    "core.authoring.parts": ("Parts", "split_rows"),
    "core.authoring.shop": ("Shop",),
    "core.authoring.tables": ("read_documents", "read_table"),
    "core.authoring.train_expert": ("Rows", "train_expert"),
    "core.backbones.backbone": ("Backbone",),
    "core.backbones.features": ("FeatureCache",),
    "core.backbones.trunk": ("Trunk", "blocks_of"),
    "core.bus": ("Bus", "BusConfig", "LayerNorm"),
    "core.composing.bench": ("Order",),
    "core.composing.recompose": ("Outcome",),
    "core.composing.selection": ("Installed",),
    "core.composing.verify": ("measure_off_domain",),
    "core.composing.workspace": ("compose", "open_backbone"),
    "core.engines.crew": ("Crew", "Failure", "choose_crew"),
    "core.engines.engine": ("Engine", "Job", "JobResult", "Jobs", "run_job"),
    "core.engines.kept": ("Kept",),
    "core.engines.sweep": ("Swept", "sweep"),
    "core.evidence": ("off_domain",),
    "core.experts": ("Expert", "Linear", "LowRank", "OwnHead"),
    "core.extending.hooks": ("hookimpl",),
    "core.extending.plugins": ("PluginState", "Plugins"),
    "core.generate.author": ("train_generator",),
    "core.generate.context": ("context_layout", "contexts"),
    "core.generate.decode": ("Token", "Walk", "generate"),
    "core.generate.documents": ("split_documents",),
    "core.generate.spelling": ("byte_counts",),
    "core.host": ("Host",),
    "core.learning.train_router": ("RouterSettings", "train_router"),
    "core.live": ("Live",),
    "core.measuring.evaluate": ("Evaluation", "columns_data", "evaluate", "hits_by_system"),
    "core.measuring.outside": ("Outside", "judge_outside"),
    "core.receipt": ("Receipt",),
    "core.routers": ("ColumnData", "Judged", "Router", "StatisticsRouter", "build_router"),
    "core.rows": ("BackgroundRow", "CardRow", "Row", "write_rows"),
    "core.statistics": ("Statistics",),
    "core.tasks": (
        "Classification",
        "Generation",
        "Regression",
    ),
    "core.versions": ("library_versions",),
    "registry.errors": (
        "BackboneMismatchError",
        "CanaryError",
        "CardError",
        "CompositionError",
        "ContractError",
        "HarmError",
        "InstallError",
        "IntegrityError",
        "JobsError",
        "LockHeldError",
        "ManifestError",
        "MissingError",
        "PluginError",
        "RedhostError",
        "SettingsError",
        "StaleGenerationError",
        "StoreError",
        "SwapInProgressError",
        "UnknownNameError",
        "UsageError",
    ),
    "registry.leases": ("Lease", "Leases"),
    "registry.manifest": ("BackboneRef", "Base", "ExpertManifest", "Training"),
    "registry.project": ("ExpertPlan",),
    "registry.scaffold": ("write_project",),
    "registry.states": ("Listing",),
    "registry.violations": ("Violation",),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__version__ = "0.1.0"
"""The version of redhost."""

__all__ = [
    "AdaptSettings",
    "Answer",
    "Backbone",
    "BackboneMismatchError",
    "BackboneRef",
    "BackgroundRow",
    "Base",
    "Bus",
    "BusConfig",
    "CanaryError",
    "CardError",
    "CardFile",
    "CardRow",
    "Classification",
    "ColumnData",
    "Composed",
    "CompositionError",
    "ContractError",
    "Crew",
    "Engine",
    "Evaluation",
    "Expert",
    "ExpertManifest",
    "ExpertPlan",
    "ExpertSettings",
    "Failure",
    "FeatureCache",
    "Generation",
    "HarmError",
    "Host",
    "InstallError",
    "Installed",
    "IntegrityError",
    "Job",
    "JobResult",
    "Jobs",
    "JobsError",
    "Judged",
    "Kept",
    "LayerNorm",
    "Lease",
    "Leases",
    "Linear",
    "Listing",
    "Live",
    "LockHeldError",
    "LowRank",
    "ManifestError",
    "MissingError",
    "Order",
    "Outcome",
    "Outside",
    "OwnHead",
    "Parts",
    "PluginError",
    "PluginState",
    "Plugins",
    "Receipt",
    "RedhostError",
    "Regression",
    "Router",
    "RouterSettings",
    "Row",
    "Rows",
    "SettingsError",
    "Shop",
    "StaleGenerationError",
    "Statistics",
    "StatisticsRouter",
    "StoreError",
    "SwapInProgressError",
    "Swept",
    "Token",
    "TrainedExpert",
    "Training",
    "Trunk",
    "UnknownNameError",
    "UsageError",
    "Violation",
    "Walk",
    "__version__",
    "adapt",
    "blocks_of",
    "build_router",
    "byte_counts",
    "choose_crew",
    "columns_data",
    "compose",
    "context_layout",
    "contexts",
    "delta",
    "evaluate",
    "generate",
    "hits_by_system",
    "hookimpl",
    "judge_outside",
    "library_versions",
    "measure_off_domain",
    "new_backbone",
    "no_card",
    "off_domain",
    "open_backbone",
    "open_shop",
    "read_documents",
    "read_table",
    "run_job",
    "save_backbone",
    "save_expert",
    "split_documents",
    "split_rows",
    "statistics_card",
    "sweep",
    "texts_card",
    "train_expert",
    "train_generator",
    "train_package",
    "train_router",
    "vectors_card",
    "write_project",
    "write_rows",
]

logging.getLogger("redhost").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'redhost' has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_WHERE[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
