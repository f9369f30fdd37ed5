"""From data to a package: functions for authors of experts and backbones."""

from .core.backbones.encoder import TextEncoder, blocks_of
from .core.backbones.engines import EngineEncoder
from .core.training.context import open_for_training
from .core.training.data import split_rows
from .core.training.expert import ExpertSettings
from .core.training.recipes import train_package
from .core.training.rows import read_rows
from .core.training.task_recipe import TaskRecipe
from .registry.package.project import ExpertPlan, write_project

__all__ = [
    "EngineEncoder",
    "ExpertPlan",
    "ExpertSettings",
    "TaskRecipe",
    "TextEncoder",
    "blocks_of",
    "open_for_training",
    "read_rows",
    "split_rows",
    "train_package",
    "write_project",
]
