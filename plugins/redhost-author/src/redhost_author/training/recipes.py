"""From an author's rows to a package: train an expert, and write its files and metrics.

`train_package` is used for every expert that is trained here; the differences between kinds are in
their recipes (`training.recipe`); that of a plugin's form is the plugin's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from redhost.core.plugins.manager import Plugins
from redhost.core.types import Progress, Row
from redhost.registry.errors import suggest
from redhost.registry.home.questions import cache_of
from redhost.registry.package.discover import Package
from redhost.registry.package.forms import FORMS, INSIDE, OPEN
from redhost.registry.package.manifest import ExpertManifest
from redhost.registry.queries.settings import installed_backbone, resolve_home

from ..forms import RECIPES, forms_of
from ..project import ExpertPlan, package_in, read_plan
from .context import AuthoringContext, open_for_training
from .data import SHOWN_ROWS, DataSplits, split_rows
from .expert import ExpertSettings, resuming
from .packaging import save_expert
from .recipe import Recipe, TrainedProject, cuts_of
from .task_recipe import recipe_of


def split_for(
    package: Package, rows: Sequence[Row], *, valid: Sequence[Row] | None = None
) -> DataSplits:
    """Split an author's rows as the task of an installed backbone does, which is not loaded.

    Args:
        package: The backbone.
        rows: The rows, as `read_rows` reads them for its task.
        valid: Validation rows of the author's own.

    Raises:
        UsageError: If the rows cannot be split.
    """
    manifest, _ = installed_backbone(package).unwrap(f"backbone package {package}")
    task = Plugins().task(manifest.task, resolution=manifest.resolution)
    return split_rows(rows, valid=valid, task=task)


def train_project(
    project: Path,
    splits: DataSplits,
    *,
    package: Package,
    epochs: int | None = None,
    seed: int = 0,
    home: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> TrainedProject:
    """Train the expert of a project on the installed backbone it is for.

    Args:
        project: The project's folder.
        splits: The author's rows, see `split_for`.
        package: The backbone, see `backbone_for`.
        epochs: Passes over the rows, at most.
        seed: The random seed.
        home: The state folder.
        device: The device of the trunk.
        progress: Called with (done, in all) for each stage.

    Raises:
        UsageError: If data or plan do not fit the backbone.
    """
    plan = read_plan(project)
    context = open_for_training(
        package,
        cache=cache_of(resolve_home(home)) / "features",
        device=device or "cpu",
        progress=progress,
    )
    settings = settings_for(plan, context, epochs=epochs, seed=seed)
    trained = train_package(
        project, plan, splits, context=context, settings=settings, progress=progress
    )
    return TrainedProject(
        manifest=trained,
        splits=_shown(splits, trained.card.kind),
        cuts=cuts_of(context.backbone, splits.rows),
    )


def settings_for(
    plan: ExpertPlan, context: AuthoringContext, *, epochs: int | None, seed: int
) -> ExpertSettings:
    """Return the recipe's settings, overridden by those of plan and author.

    Args:
        plan: The kind of expert.
        context: The backbone of the expert, and the plugins that train other forms.
        epochs: Passes over the rows, at most; None for the recipe's default.
        seed: The random seed.

    Raises:
        PluginError: If no trusted plugin trains its form.
    """
    default = _recipe_for(plan, context).default_settings(context.backbone)
    return replace(
        default,
        form=plan.form or default.form,
        rank=plan.rank,
        epochs=epochs or default.epochs,
        seed=seed,
    )


def train_package(
    project: Path,
    plan: ExpertPlan,
    splits: DataSplits,
    *,
    context: AuthoringContext,
    settings: ExpertSettings | None = None,
    resumable: bool = True,
    progress: Progress | None = None,
) -> ExpertManifest:
    """Train the expert of a project and write it into the project's package.

    Args:
        project: The project's folder.
        plan: The kind of expert.
        splits: The author's rows, or passages of the author's documents.
        context: The backbone with its manifest, background card and feature cache.
        settings: How to train; None for the recipe's own. Space, form and rank are the plan's, if
            it sets them.
        resumable: Whether to write checkpoints and resume from them.
        progress: Called with (epochs done, epochs in all).

    Raises:
        UsageError: If the plan cannot be carried out on this backbone.
        PluginError: If no trusted plugin trains its form.
        HarmError: If the expert is worse than a baseline; the package is written for inspection.
    """
    settings = settings or settings_for(plan, context, epochs=None, seed=0)
    settings = replace(settings, form=plan.form or settings.form, rank=plan.rank or settings.rank)
    plan = _recipe_for(plan, context).opened(plan, splits, context)
    splits = _shown(splits, plan.card)
    settings = replace(settings, space=plan.writes or recipe_of(context.backbone.task).space)
    # Of the form that was chosen, if its author named none.
    recipe = _recipe_for(plan, context)(
        plan=plan, splits=splits, context=context, settings=settings
    )
    recipe.check()
    with resuming(
        project,
        resumable=resumable,
        of=(plan, settings, context.manifest.fingerprint, splits, recipe.others),
    ) as checkpoint:
        recipe = recipe.prepared(checkpoint, progress)
        trained = recipe.train(checkpoint, progress)
        manifest = save_expert(package_in(project), recipe.draft(trained))
    recipe.by_task.refuse_wreck(recipe, manifest.training.metrics)
    return manifest


def _shown(splits: DataSplits, card: str | None) -> DataSplits:
    """Return the splits for a kind of card: with sums over all rows, few vectors are enough."""
    summed = card == "vectors" and "statistics" in splits.task.head.cards
    return splits.showing(SHOWN_ROWS) if summed else splits


def _recipe_for(plan: ExpertPlan, context: AuthoringContext) -> type[Recipe]:
    built_in = plan.form is None or plan.form in FORMS
    name = INSIDE if built_in and plan.acts_inside else plan.form or OPEN
    if name in FORMS or (name == OPEN and not context.plugins.providers(RECIPES, OPEN)):
        return Recipe
    what = "experts that act inside the blocks" if name == INSIDE else f"the form {name!r}"
    return cast(
        "type[Recipe]",
        context.plugins.make(
            RECIPES,
            name,
            type,
            what=f"the training of {what}",
            instead=lambda: _forms_meant(name, context.plugins),
            plan=plan,
            backbone=context.backbone,
        ),
    )


def _forms_meant(name: str, plugins: Plugins) -> str:
    forms = forms_of(plugins.names(RECIPES))
    dist, of_plugin, _ = name.partition(":")
    # A form of a plugin names it, which is to be installed if it registers none.
    if name in forms or (of_plugin and not any(f.startswith(f"{dist}:") for f in forms)):
        return ""
    return f"{suggest(name, forms)}Known: {', '.join(forms)}. "
