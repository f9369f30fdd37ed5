"""From a project and a file of data to a trained package, whatever the backbone answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ...registry.manifest import ExpertManifest
from ...registry.project import ExpertPlan, read_plan
from ..experts import Space
from ..generate.author import train_generator
from ..generate.documents import split_documents
from ..progress import Progress
from .author import train_package
from .expert_run import ExpertSettings
from .open_shop import installed_shop
from .parts import split_rows
from .tables import read_documents, read_table

__all__ = ["GENERATION", "Trained", "train_project"]

GENERATION = ExpertSettings(
    epochs=12, batch=128, learning_rate=3e-3, weight_decay=0.1, dropout=0.1, patience=3
)
"""How a causal expert is trained; chosen on validation documents."""

SHY = 0.5
"""λ of a causal expert, times the tokens of the vocabulary that ‖W_c Δ‖² is summed over."""


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A package that was trained: its manifest, and how many rows it learnt from."""

    manifest: ExpertManifest
    rows: int

    @property
    def metrics(self) -> Mapping[str, float]:
        """What was measured on the rows, by part or by measure."""
        training: Mapping[str, float] = self.manifest.training.metrics
        return training


def train_project(
    project: Path,
    *,
    data: str,
    valid: str | None = None,
    text_field: str = "text",
    label_field: str = "label",
    epochs: int | None = None,
    seed: int = 0,
    home: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Trained:
    """Train the expert of a project on the installed backbone it is for.

    Args:
        project: The project's folder.
        data: The author's rows: a file, or ``-``.
        valid: Validation rows of the author's own.
        text_field: Where the text stands.
        label_field: Where the label stands; where text is generated there is none.
        epochs: Passes over the rows, at most.
        seed: Where randomness comes from.
        home: The state folder.
        device: Where the trunk runs.
        progress: Called with (done, in all) of what is under way.

    Raises:
        UsageError: If data or plan do not fit the backbone.
    """
    plan = read_plan(project)
    shop = installed_shop(home, backbone=plan.backbone, device=device, progress=progress)
    task = shop.backbone.task
    if shop.backbone.generates:
        read_texts = partial(read_documents, text_field=text_field)
        parts = split_documents(read_texts(data), valid=read_texts(valid) if valid else None)
        shy = replace(GENERATION, off_domain=SHY / shop.backbone.vocabulary)
        settings = _settings(plan, shy, space="hidden", epochs=epochs, seed=seed)
        train = train_generator
    else:
        read = partial(
            read_table,
            text_field=text_field,
            label_field=label_field,
            numbers=task.name == "regression",
        )
        parts = split_rows(read(data), valid=read(valid) if valid else None, task=task)
        settings = _settings(plan, ExpertSettings(), space="labels", epochs=epochs, seed=seed)
        train = train_package
    manifest = train(project, plan, parts, shop=shop, settings=settings, progress=progress)
    return Trained(manifest=manifest, rows=len(parts.train))


def _settings(
    plan: ExpertPlan, settings: ExpertSettings, *, space: Space, epochs: int | None, seed: int
) -> ExpertSettings:
    """Return settings with what the plan and the flags say."""
    return replace(
        settings,
        form=plan.form,
        space=plan.writes or space,
        rank=plan.rank,
        epochs=epochs or settings.epochs,
        seed=seed,
    )
