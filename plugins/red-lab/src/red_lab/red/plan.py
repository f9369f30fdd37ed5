"""The settings of one run of `redhost lab red`: task, protocol, backbone, recipe and budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from red_lab.red.base import RECIPES, BaseSettings
from red_lab.red.cut import Precision
from red_lab.red.experts import Budget
from red_lab.red.gate import GateSettings
from red_lab.red.queries import Protocol, Task

__all__ = ["Plan", "usual"]

USUAL: Mapping[tuple[str, Task, Protocol], tuple[str, Precision]] = {
    ("tiny", "mixed", "held-out"): ("fourier-tiny", "float32"),
    ("smollm2", "addition", "held-out"): ("fourier", "bfloat16"),
    ("smollm2", "mixed", "seed"): ("seed", "bfloat16"),
    ("smollm2", "mixed", "held-out"): ("fourier", "bfloat16"),
}
"""Recipe and precision that differ from the defaults. The seed's head memorises its training
questions and fails on held-out ones; longer questions take half as long in half precision."""


def usual(backbone: str, task: Task, protocol: Protocol) -> tuple[str, Precision]:
    """Return the default recipe and precision of the base stage."""
    return USUAL.get((backbone, task, protocol), ("seed", "float32"))


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of a run.

    Attributes:
        task: ``addition`` or ``mixed``.
        protocol: ``seed`` or ``held-out``.
        backbone: ``tiny``, ``smollm2``, ``gguf:FILE`` or ``hf:NAME``.
        seeds: Number of random seeds.
        stratified: Draw every range equally often.
        recipe: The name of the base stage's recipe in `RECIPES`.
        base: The base stage.
        budget: Training settings of every expert.
        gate: Training settings of every router.
        device: The device of the trunk and its top blocks.
        ablations: Also vary ranks, recipe and noise.
        shares: Also train bases on shares of the questions.
    """

    task: Task
    protocol: Protocol
    backbone: str
    seeds: int
    stratified: bool = False
    recipe: str = "seed"
    base: BaseSettings = field(default_factory=BaseSettings)
    budget: Budget = field(default_factory=Budget)
    gate: GateSettings = field(default_factory=GateSettings)
    device: str = "cpu"
    ablations: bool = False
    shares: bool = False

    @property
    def name(self) -> str:
        """The folder's name, which distinguishes this run from others."""
        source = "".join(c if c.isalnum() else "-" for c in self.backbone.rpartition("/")[2])
        parts = [source, self.task, self.protocol]
        if self.stratified:
            parts.append("stratified")
        written = RECIPES[self.recipe]
        recipe, precision = usual(self.backbone, self.task, self.protocol)
        half = self.base.precision == "bfloat16"
        changes = {
            self.recipe: self.recipe != recipe,
            f"top{self.base.last_blocks}": self.base.last_blocks != written.last_blocks,
            f"epochs{self.base.epochs}": self.base.epochs != written.epochs,
            "bf16" if half else "fp32": self.base.precision != precision,
            f"share{round(100 * self.base.share)}": self.base.share != 1.0,
            self.device: self.device != "cpu",
        }
        parts += [part for part, changed in changes.items() if changed]
        return "-".join(parts)
