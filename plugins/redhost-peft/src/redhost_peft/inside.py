"""Experts that read or write at blocks: a tap, or a graft, of whatever form their manifest says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec
from redhost_author.project import ExpertPlan
from redhost_author.training.context import AuthoringContext
from redhost_author.training.data import DataSplits
from redhost_author.training.expert import ExpertRows, TrainedExpert, init_expert
from redhost_author.training.packaging import ExpertDraft
from redhost_author.training.recipe import Recipe
from redhost_author.training.task_recipe import Read
from torch import Tensor

from redhost.core.backbones.backbone import Backbone
from redhost.core.backbones.interventions import Intervention
from redhost.core.backbones.interventions.layout import inside_reader
from redhost.core.bus.experts import Expert
from redhost.core.types import Progress, Row
from redhost.registry.errors import ContractError
from redhost.registry.package.checked import Refused, Violation
from redhost.registry.package.forms import FINAL

from .graft import Graft, token_step
from .in_trunk import train_inside
from .tap import Tap, block_at, compute_features


class InsideExpert(Expert):
    """An expert that reads states at a block, and writes at the end or to a block.

    Args:
        expert: The expert of the states there.
        name: Its id, for messages.
        reads: ``final``, or the block it reads, by number or name.
        writes: ``final``, or the block it writes to.
    """

    def __init__(self, expert: Expert, *, name: str, reads: str, writes: str) -> None:
        super().__init__(space=expert.space, labels=expert.labels, temperature=expert.temperature)
        self.expert, self.name, self.reads_tap, self.writes_tap = expert, name, reads, writes

    def forward(self, z: Tensor) -> Tensor:
        """Return Δ ``(B, out)`` for the normalised states it reads ``(B, D)``."""
        delta: Tensor = self.expert(z)
        return delta

    def folded(self) -> Expert:
        """Return what computes the same in fewer products, if there is such an expert."""
        folded = self.expert.folded()
        return self if folded is self.expert else folded

    def intervention(self, backbone: Backbone) -> Intervention:
        """Return the tap, or the graft, in a backbone.

        Raises:
            ContractError: If the trunk has no such block.
        """
        wrong = check_taps(self.name, backbone, reads=self.reads_tap, writes=self.writes_tap)
        if wrong is not None:
            raise Refused(wrong)
        read = block_at(backbone.trunk, self.reads_tap)
        if self.writes_tap == FINAL:
            return Tap(block=read)
        step = token_step(self.expert, width=backbone.width, eps=backbone.eps)
        return Graft(read=read, write=block_at(backbone.trunk, self.writes_tap), step=step)


def check_taps(expert_id: str, backbone: Backbone, *, reads: str, writes: str) -> Violation | None:
    """Return the violation, if an expert's taps do not fit this trunk; else None."""
    inside = next((tap for tap in (reads, writes) if tap != FINAL), None)
    several, refused = backbone.trunk.features is not None, backbone.task.unit.refuses_inside(None)
    if inside is not None and (several or refused):
        why = refused or f"h of backbone {backbone.name!r} is of several layers"
        expected = f"'final': {why}"
        return Violation("tap_unknown", "reads.tap", expected, inside, "Read and write at the end.")
    try:
        layers = {
            field: block_at(backbone.trunk, tap)
            for field, tap in (("reads.tap", reads), ("writes.tap", writes))
            if tap != FINAL
        }
    except ContractError as e:
        return Violation("tap_unknown", "reads.tap", e.expected, e.found, e.hint)
    # What writes to a block also reads one (`rules._taps`), so the second key is there.
    if "writes.tap" in layers and layers["reads.tap"] > layers["writes.tap"]:
        return Violation(
            "tap_order",
            "writes.tap",
            f"block {layers['reads.tap']} or a later one, since expert {expert_id!r} reads there",
            writes,
            "Read earlier, or write later.",
        )
    return None


@dataclass(frozen=True, kw_only=True, eq=False)
class InsideRecipe(Recipe):
    """The steps from rows to an expert that reads at a block, and may write to one."""

    @classmethod
    def opened(cls, plan: ExpertPlan, splits: DataSplits, context: AuthoringContext) -> ExpertPlan:
        """Default to a card of texts: vectors of the end do not show the states at a block."""
        plan = msgspec.structs.replace(plan, card=plan.card or "texts")
        return super().opened(plan, splits, context)

    def check(self) -> None:
        """Check that the plan can be carried out, and that the trunk has the blocks it names."""
        super().check()
        plan = self.plan
        wrong = check_taps(plan.id, self.backbone, reads=plan.reads_tap, writes=plan.writes_tap)
        if wrong is not None:
            raise wrong.error(f"expert {plan.id!r}")

    @cached_property
    def tap(self) -> Tap:
        """The tap it reads at."""
        return Tap(block=block_at(self.backbone.trunk, self.plan.reads_tap))

    def read(self, texts: Sequence[str]) -> Tensor:
        """Return the expert's input for texts ``(N, D)``: normalised states at its tap."""
        z: Tensor = self.norm(compute_features(self.tap, self.backbone.trunk, texts))
        return z

    def features(self, rows: Sequence[Row]) -> ExpertRows:
        """Return the rows as training data of an expert on the bus."""
        return replace(super().features(rows), z=self.read([r.text for r in rows]))

    def _train_on_bus(self, checkpoint: Path | None, progress: Progress | None) -> TrainedExpert:
        """Train it on states at its tap; one that writes to a block, through the blocks above."""
        if self.plan.writes_tap == FINAL:
            return super()._train_on_bus(checkpoint, progress)
        width = self.backbone.width
        graft = init_expert(self.settings, width=width, out=width, labels=self.labels)
        trained = train_inside(self.placed(graft), self, checkpoint, progress)
        return replace(trained, expert=graft)

    def placed(self, expert: Expert) -> InsideExpert:
        """Return an expert as it is in the trunk."""
        plan = self.plan
        return InsideExpert(expert, name=plan.id, reads=plan.reads_tap, writes=plan.writes_tap)

    def draft(self, trained: TrainedExpert) -> ExpertDraft:
        """Return the draft of the package: measured in the trunk, with the tensors of its form."""
        placed = replace(trained, expert=self.placed(trained.expert))
        return replace(super().draft(placed), expert=trained.expert)

    def bus_reader(self, expert: Expert) -> Read:
        """Return a function from texts to the expert's bus input: states at its tap, or h' − h."""
        if self.plan.writes_tap == FINAL:
            return self.read
        return inside_reader(self.backbone, self.plan.id, expert)
