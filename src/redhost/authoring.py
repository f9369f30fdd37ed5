"""From data to a package: functions for authors of experts and backbones."""

from .core.backbones.encoder import TextEncoder, blocks_of
from .core.backbones.engines import EngineEncoder
from .core.backbones.feature_cache import FeatureCache
from .core.composition.prepare import open_backbone
from .core.digests import library_versions
from .core.model.verify import measure_off_domain
from .core.training.adapt import AdaptSettings, adapt, delta
from .core.training.context import AuthoringContext, open_for_training
from .core.training.data import DataSplits, split_rows
from .core.training.expert import ExpertRows, ExpertSettings, TrainedExpert, train_expert
from .core.training.new_backbone import BackbonePlan, new_backbone
from .core.training.packaging import (
    CardFile,
    ExpertDraft,
    save_backbone,
    save_expert,
    statistics_card,
    texts_card,
    vectors_card,
)
from .core.training.recipes import train_package
from .core.training.rows import read_rows, read_table
from .core.training.task_recipe import TaskRecipe
from .core.types import BackgroundRow, CardRow, write_rows
from .registry.package.manifest import BackboneRef, ExpertManifest, Training
from .registry.package.project import ExpertPlan, write_project

__all__ = [
    "AdaptSettings",
    "AuthoringContext",
    "BackbonePlan",
    "BackboneRef",
    "BackgroundRow",
    "CardFile",
    "CardRow",
    "DataSplits",
    "EngineEncoder",
    "ExpertDraft",
    "ExpertManifest",
    "ExpertPlan",
    "ExpertRows",
    "ExpertSettings",
    "FeatureCache",
    "TaskRecipe",
    "TextEncoder",
    "TrainedExpert",
    "Training",
    "adapt",
    "blocks_of",
    "delta",
    "library_versions",
    "measure_off_domain",
    "new_backbone",
    "open_backbone",
    "open_for_training",
    "read_rows",
    "read_table",
    "save_backbone",
    "save_expert",
    "split_rows",
    "statistics_card",
    "texts_card",
    "train_expert",
    "train_package",
    "vectors_card",
    "write_project",
    "write_rows",
]
