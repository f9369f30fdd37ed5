from .project import ExpertPlan, write_project
from .training.context import open_for_training
from .training.data import split_rows
from .training.expert import ExpertSettings
from .training.recipes import train_package
from .training.task_recipe import TaskRecipe

__all__ = [
    "ExpertPlan",
    "ExpertSettings",
    "TaskRecipe",
    "open_for_training",
    "split_rows",
    "train_package",
    "write_project",
]
