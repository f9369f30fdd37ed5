"""From a LoRA adapter to a package: adapters trained elsewhere, and adapters trained here.

The two files of an adapter trained elsewhere are not changed. Card and metrics come from the
author's rows. If these have labels that the backbone lacks, a linear head is solved on h', which is
h with the adapter. An adapter trained here is trained together with its head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Self, cast

import msgspec
import safetensors.torch
import torch
from redhost_author.new_folder import making
from redhost_author.project import ExpertPlan, write_plan, write_project
from redhost_author.training.context import AuthoringContext, open_for_training
from redhost_author.training.data import DataSplits, split_rows
from redhost_author.training.expert import ExpertSettings, TrainedExpert
from redhost_author.training.packaging import ExpertDraft, FormDraft, save_expert
from redhost_author.training.recipe import Recipe, TrainedProject, cuts_of
from redhost_author.training.task_recipe import recipe_of
from torch import Tensor

from redhost.core.backbones.backbone import Backbone
from redhost.core.backbones.feature_cache import cached_encode
from redhost.core.backbones.interventions.layout import read_tokens, with_layout
from redhost.core.bus.layout import FeatureLayout, WideNorm
from redhost.core.plugins.manager import Plugins
from redhost.core.types import Progress, Row
from redhost.registry.errors import UsageError
from redhost.registry.home.questions import cache_of
from redhost.registry.package.discover import Package
from redhost.registry.package.manifest import FileRef
from redhost.registry.package.safetensors_check import read_header, sha256_hex
from redhost.registry.queries.settings import installed_backbone, resolve_home

from .in_trunk import train_inside
from .lora import LoraExpert, linears_of, lora_from_files
from .lora_run import adapter_files, fresh_adapter
from .package import FORM, HEAD
from .peft_adapter import CONFIG, WEIGHTS, check_targets, read_adapter

PROBES = ("What is 37 plus 12?", "  Two\nlines,\ttabs", "Ünïcödé ✓ 日本", "x=1_000; y=-2.5e3")
"""The texts of the canary."""

MOST_TOKENS = 32
"""Most tokens of a text in the canary."""


def import_adapter(
    project: Path,
    plan: ExpertPlan,
    files: Mapping[str, bytes],
    rows: Sequence[Row],
    *,
    package: Package,
    home: Path | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> TrainedProject:
    """Write a project with an adapter's package, for an installed backbone.

    Args:
        project: The project's folder; nothing is written if the adapter is refused.
        plan: The kind of expert.
        files: PEFT's two files by name.
        rows: The author's rows, as `read_rows` reads them for the backbone's task.
        package: The backbone, see `backbone_for`.
        home: The state folder.
        device: The device of the trunk.
        progress: Called with (done, in all) for each stage.

    Raises:
        RedhostError: If the adapter is invalid or does not fit the backbone.
        UsageError: If data or plan do not fit the backbone.
    """
    who = f"the adapter of expert {plan.id!r} was not imported"
    manifest, _ = installed_backbone(package).unwrap(f"backbone package {package}")
    adapter = read_adapter(files[CONFIG], files[WEIGHTS]).unwrap(who)
    plugins = Plugins()
    task = plugins.task(manifest.task, resolution=manifest.resolution)
    if task.unit.refuses_inside(None):
        raise UsageError(
            who,
            expected="a backbone that answers whole texts, or goes on with them",
            found=f"{manifest.id!r}, which {task.unit.does}",
        )
    splits = split_rows(rows, task=task)
    cache = cache_of(resolve_home(home)) / "features"
    context = open_for_training(
        package, cache=cache, device=device or "cpu", progress=progress, plugins=plugins
    )
    linears = linears_of(context.backbone.trunk.model)
    for wrong in check_targets(adapter, linears, backbone=manifest.id):
        raise wrong.error(who)
    plan, by_task = AdapterRecipe.opened(plan, splits, context), recipe_of(task)
    settings = ExpertSettings(space=plan.writes or by_task.space)
    recipe = AdapterRecipe(
        plan=plan, splits=splits, context=context, settings=settings, files=files
    )
    recipe.check()
    draft = recipe.draft(recipe.train(None, progress))
    summary = f"redhost expert {plan.id}"
    with making(project):
        folder = write_project(project, kind="expert", package_id=plan.id, summary=summary)
        write_plan(project, msgspec.structs.replace(recipe.plan, backbone=manifest.id))
        made = save_expert(folder, draft)
    by_task.refuse_wreck(recipe, made.training.metrics)
    return TrainedProject(manifest=made, splits=splits, cuts=cuts_of(context.backbone, splits.rows))


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterRecipe(Recipe):
    """The steps from an adapter to a package.

    Attributes:
        files: PEFT's two files by name; empty before there is an adapter.
        head: The head that was trained together with the adapter, if any.
        epochs: Training epochs; 0 for an adapter trained elsewhere.
    """

    files: Mapping[str, bytes] = field(default_factory=dict)
    head: Mapping[str, Tensor] | None = None
    epochs: int = 0

    @classmethod
    def opened(cls, plan: ExpertPlan, splits: DataSplits, context: AuthoringContext) -> ExpertPlan:
        """Default to the backbone's classifier if it has all labels, and to a card of texts.

        A card of vectors contains h, from which h' cannot be computed.
        """
        backbone = context.backbone
        answered = backbone.task.head.labels_in([r.label for r in splits.rows])
        shares = backbone.classifier is not None and answered <= {*backbone.labels}
        space = plan.writes or ("hidden" if shares else "labels")
        return msgspec.structs.replace(plan, writes=space, card=plan.card or "texts")

    def expert(self, head: Mapping[str, Tensor] | None = None) -> LoraExpert:
        """Return the expert; without a head, its input can be computed but not its answer."""
        who, space = f"expert {self.plan.id!r}", self.settings.space
        return lora_from_files(self.files, who=who, space=space, labels=self.labels, head=head)

    @cached_property
    def wide(self) -> Backbone:
        """The backbone with the adapter's segment in h̃."""
        return with_layout(self.backbone, {self.plan.id: self.expert()})

    def read(self, texts: Sequence[str]) -> Tensor:
        """Return the expert's input for texts ``(N, D)``: z', or h' − h."""
        encode = cached_encode(self.wide, self.context.manifest.fingerprint, self.context.cache)
        layout = self.wide.layout or FeatureLayout(width=self.backbone.width)
        return layout.read(WideNorm(self.norm, layout)(encode(texts)), self.plan.id)

    def _train_on_bus(self, checkpoint: Path | None, progress: Progress | None) -> TrainedExpert:  # noqa: ARG002
        """Solve a head if one is needed; the adapter is not changed."""
        if self.plan.writes != "labels" or self.head is not None:
            expert = self.expert(self.head).requires_grad_(False).eval()
            return TrainedExpert(expert=expert, epoch=self.epochs, loss=None)
        rows = (*self.splits.train, *self.splits.valid)
        solved = self.solved(rows, self.read)
        expert = self.expert(solved.expert.state_dict()).requires_grad_(False).eval()
        return replace(solved, expert=expert, learnt_all=bool(self.splits.valid))

    def draft(self, trained: TrainedExpert) -> ExpertDraft:
        """Return the draft of the package; its canary is computed on fixed probe texts."""
        ids = [self.backbone.trunk.tokens(text)[:MOST_TOKENS] for text in PROBES]
        tokens = torch.tensor([row[: min(map(len, ids))] for row in ids])
        return replace(
            super().draft(trained),
            canary=read_tokens(trained.expert, self.backbone, tokens).clone(),
            form=self._form(cast("LoraExpert", trained.expert), tokens),
        )

    def _form(self, expert: LoraExpert, tokens: Tensor) -> FormDraft:
        """Return the adapter's two files unchanged, a separate head, and the fields about them."""
        weights, files = self.files[WEIGHTS], {CONFIG: self.files[CONFIG]}
        if head := {n: t for n, t in (("W", expert.W), ("b", expert.b)) if t is not None}:
            plain = {n: t.detach().to(torch.float32).contiguous() for n, t in head.items()}
            files[HEAD] = safetensors.torch.save(plain)
        header = read_header(weights).or_refuse()
        fields = {
            "form": FORM,
            "rank": expert.adapter.rank,
            "activation": "identity",
            "weights": FileRef(file=WEIGHTS, sha256=sha256_hex(weights)),
            "tensors": {name: info.shape for name, info in header.items()},
            "files": {name: sha256_hex(data) for name, data in files.items()},
        }
        return FormDraft(files={WEIGHTS: weights, **files}, fields=fields, tokens=tokens)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainedAdapterRecipe(AdapterRecipe):
    """The steps for an adapter that is trained here."""

    # Small enough to train in an evening; not tuned on any score.
    settings_by_default = ExpertSettings(
        form=FORM, epochs=10, batch=16, learning_rate=1e-3, weight_decay=0.01, patience=3
    )

    def check(self) -> None:
        """Check that the plan can be carried out, before PEFT is used.

        Raises:
            UsageError: If it cannot, or sets options that adapters do not support.
        """
        plan = self.plan
        if plan.writes == "logits" or plan.acts_inside:
            raise UsageError(
                f"expert {plan.id!r} is an adapter, which acts in the blocks as it is",
                expected="hidden states or labels, and no taps",
                found=f"writes {plan.writes}, taps {plan.reads_tap} and {plan.writes_tap}",
                hint="Correct [tool.redhost.expert] in the project's pyproject.toml.",
            )
        if plan.writes == "labels":
            self.require_solver()
        super().check()

    def prepared(self, checkpoint: Path | None, progress: Progress | None) -> Self:
        """Return the recipe with the trained adapter and its head."""
        plan, splits, settings = self.plan, self.splits, self.settings
        files = fresh_adapter(
            self.backbone,
            rank=settings.rank,
            blocks=plan.blocks,
            targets=plan.targets,
            seed=settings.seed,
        )
        start = None
        if plan.writes == "labels":
            solved = self.solved(splits.train, lambda texts: self.norm(self.context.encode(texts)))
            start = solved.expert.state_dict()
        expert = replace(self, files=files).expert(start)
        trained = train_inside(expert, self, checkpoint, progress)
        head = None if expert.W is None else expert.state_dict()
        learnt = {n: head[n] for n in ("W", "b")} if head else None
        made = adapter_files(expert, files[CONFIG])
        return replace(self, files=made, head=learnt, epochs=trained.epoch)
