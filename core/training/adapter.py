"""From a LoRA adapter that was trained elsewhere to a package: its two files stay as they came.

Nothing of the adapter is trained. Card and metrics come from the author's rows; where these have
labels that the backbone has not, a linear head is solved on h', what the adapter makes of h.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec
import safetensors.torch
import torch
from torch import Tensor

from ...registry.errors import UsageError
from ...registry.package.discover import Package
from ...registry.package.peft_adapter import CONFIG, WEIGHTS, check_targets, read_adapter
from ...registry.package.project import ExpertPlan, write_plan, write_project
from ...registry.queries.settings import installed_backbone, resolve_home
from ..backbones.backbone import PROBES, Backbone
from ..backbones.encoder import linears_of
from ..backbones.feature_cache import cached_encode
from ..backbones.interventions.layout import read_tokens, with_layout
from ..backbones.interventions.lora import LoraExpert, adapter_key
from ..bus.layout import FeatureLayout, WideNorm
from ..bus.tasks import Unit, make_task
from ..types import Progress, Row
from .context import open_for_training
from .data import split_rows
from .expert import TrainedExpert
from .linear_head import solve_linear_head
from .packaging import AdapterDraft, ExpertDraft, save_expert
from .recipes import Recipe, TrainedProject

MOST_TOKENS = 32
"""Most tokens of a text that the canary remembers."""


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
    """Write a project with an adapter's package, for the installed backbone it is for.

    Args:
        project: The project's folder; nothing is written where the adapter is refused.
        plan: What kind of expert it is.
        files: PEFT's two files by name.
        rows: The author's rows, as `read_rows` reads them for the backbone's task.
        package: The backbone, see `backbone_for`.
        home: The state folder.
        device: Where the trunk runs.
        progress: Called with (done, in all) of what is under way.

    Raises:
        RedhostError: If the adapter is none, or does not fit the backbone.
        UsageError: If data or plan do not.
    """
    who = f"the adapter of expert {plan.id!r} was not imported"
    manifest, _ = installed_backbone(package).unwrap(f"backbone package {package}")
    adapter = read_adapter(files[CONFIG], files[WEIGHTS]).unwrap(who)
    for wrong in check_targets(adapter, manifest.linears or {}, who=manifest.id):
        if manifest.linears:  # else when the backbone is open
            raise wrong.error(who)
    task = make_task(manifest.task, resolution=manifest.resolution)
    if task.unit is Unit.TOKEN:
        raise UsageError(
            who,
            expected="a backbone that answers labels or numbers",
            found=f"{manifest.id!r}, which generates text",
            hint="Where text is generated nothing acts inside the blocks.",
        )
    splits = split_rows(rows, task=task)
    cache = resolve_home(home) / "cache" / "features"
    context = open_for_training(package, cache=cache, device=device or "cpu", progress=progress)
    default = AdapterRecipe.settings_by_default
    recipe = AdapterRecipe(plan=plan, splits=splits, context=context, settings=default, files=files)
    space = plan.writes or ("hidden" if recipe.shares_labels() else "labels")
    plan = msgspec.structs.replace(plan, writes=space, card=plan.card or "texts")
    recipe = replace(recipe, plan=plan, settings=replace(default, space=space))
    recipe.check()
    draft = recipe.draft(recipe.train(None, progress))
    summary = f"redhost expert {plan.id}"
    folder = write_project(project, kind="expert", package_id=plan.id, summary=summary)
    write_plan(project, msgspec.structs.replace(recipe.plan, backbone=manifest.id))
    made = save_expert(folder, draft)
    recipe.refuse_wreck(made.training.metrics)
    cuts = context.backbone.cuts([r.text for r in splits.rows])
    return TrainedProject(manifest=made, splits=splits, cuts=tuple(cuts))


@dataclass(frozen=True, kw_only=True, eq=False)
class AdapterRecipe(Recipe):
    """One adapter's way to a package.

    Attributes:
        files: PEFT's two files by name.
    """

    files: Mapping[str, bytes]

    def shares_labels(self) -> bool:
        """Return whether the rows can be answered through the backbone's classifier."""
        answered = self.backbone.task.head.labels_in([r.label for r in self.splits.rows])
        return self.backbone.classifier is not None and answered <= {*self.backbone.labels}

    def expert(self, head: Mapping[str, Tensor] | None = None) -> LoraExpert:
        """Return the expert; without a head of its labels it can be read, and not asked."""
        config, weights = self.files[CONFIG], self.files[WEIGHTS]
        return LoraExpert(
            read_adapter(config, weights).unwrap(f"expert {self.plan.id!r}"),
            safetensors.torch.load(weights),
            key=adapter_key(config, weights),
            space=self.settings.space,
            labels=self.labels,
            head=head,
        )

    @cached_property
    def wide(self) -> Backbone:
        """The backbone with what the adapter makes of h beside h."""
        return with_layout(self.backbone, {self.plan.id: self.expert()})

    def read(self, texts: Sequence[str]) -> Tensor:
        """Return what the expert reads of texts ``(N, D)``: z', or h' − h."""
        encode = cached_encode(self.wide, self.context.manifest.fingerprint, self.context.cache)
        layout = self.wide.layout or FeatureLayout(width=self.backbone.width)
        return layout.read(WideNorm(self.norm, layout)(encode(texts)), self.plan.id)

    def _train_on_bus(self, checkpoint: Path | None, progress: Progress | None) -> TrainedExpert:  # noqa: ARG002
        """Solve a head where one is wanted; the adapter is as it came."""
        if self.plan.writes != "labels":
            return TrainedExpert(expert=self.expert().eval(), epoch=0, loss=None)
        head = self.backbone.task.head
        if not head.distribution:
            raise UsageError(
                f"expert {self.plan.id!r} needs a head for {head.noun}",
                expected="a backbone that answers them",
                found=f"{self.backbone.name!r} without a classifier",
            )
        rows = (*self.splits.train, *self.splits.valid)
        z = self.read([r.text for r in rows])
        solved = solve_linear_head(z, [r.label for r in rows], self.labels)
        expert = self.expert(solved.expert.state_dict()).requires_grad_(False).eval()
        return replace(solved, expert=expert, learnt_all=bool(self.splits.valid))

    def draft(self, trained: TrainedExpert) -> ExpertDraft:
        """Return what there is to write; the canary is of texts that are nobody's."""
        ids = [self.backbone.trunk.tokens(text)[:MOST_TOKENS] for text in PROBES]
        tokens = torch.tensor([row[: min(map(len, ids))] for row in ids])
        prefix = self.expert().adapter.prefix(linears_of(self.backbone.trunk.model)) or ""
        return replace(
            super().draft(trained),
            canary=read_tokens(trained.expert, self.backbone, tokens).clone(),
            adapter=AdapterDraft(files=self.files, prefix=prefix, tokens=tokens),
        )
