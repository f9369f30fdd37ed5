"""The forms of experts and the tasks of backbones; all of them are listed here.

A form is a name for a set of tensors. The tensors determine what is computed (`core.bus.experts`),
so another combination of known tensors needs only one more entry here. A plugin's form lists its
tensors in the manifests that use it (`ExpertManifest.tensors`).

Letters: D the width of the input, R the rank, O the width of the output: D for `hidden` states, the
backbone's classes for `logits`, the expert's own number of labels for `labels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Shapes = dict[str, tuple[int, ...]]
"""Tensor name → shape."""


@dataclass(frozen=True, kw_only=True)
class FormSpec:
    """One form.

    Attributes:
        tensors: Tensor name → its dimensions, a letter each.
        own: The same for an expert that writes `labels` of its own; None if there is no difference.
    """

    tensors: Mapping[str, str]
    own: Mapping[str, str] | None = None

    @property
    def ranked(self) -> bool:
        """Whether it has a rank."""
        return any("R" in letters for letters in self.tensors.values())

    def letters(self, space: str) -> Mapping[str, str]:
        """Return tensor name → letters for an expert that writes to a space."""
        return self.own if space == "labels" and self.own is not None else self.tensors

    def shapes(self, space: str, *, width: int, rank: int, out: int) -> Shapes:
        """Return tensor name → shape.

        Args:
            space: The space that the expert writes to.
            width: D.
            rank: R; ignored for a form without one.
            out: O.
        """
        size = {"D": width, "R": rank, "O": out}
        return {n: tuple(size[x] for x in word) for n, word in self.letters(space).items()}

    def written(self, space: str) -> str:
        """Return the name of the matrix whose rows are the outputs."""
        return next(n for n, word in self.letters(space).items() if word in {"OD", "OR"})


FORMS: Mapping[str, FormSpec] = {
    "residual": FormSpec(
        tensors={"U": "RD", "V": "OR"},
        own={"U": "RD", "V": "DR", "W": "OD", "b": "O"},
    ),
    "linear": FormSpec(tensors={"W": "OD", "b": "O"}),
    "mlp": FormSpec(tensors={"U": "RD", "u": "R", "V": "OR", "v": "O"}),
}
"""Every built-in form, by its name in manifests."""

ADAPTER = "lora"
"""The form of a LoRA adapter, which acts inside the blocks: its tensors are those of PEFT's file
(`peft_adapter`), plus a linear head if it writes labels of its own."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """The properties of a task that need no torch; `core.bus.tasks` has the rest.

    Attributes:
        unit: The unit of a bus row: a whole ``text``, each ``word`` of one, or each ``token``.
        head: The name of the head that answers a row.
        labels: The only labels its backbone may have; empty for any.
        classifier: Whether its backbone may have labels and a classifier.
        several: Whether an answer is a set of labels, each with a threshold.
    """

    unit: str
    head: str
    labels: tuple[str, ...] = ()
    classifier: bool = True
    several: bool = False


VALUE = "value"
"""The one label of a regression backbone, and of its experts."""

DEFAULT_TASK = "classification"

TASKS: dict[str, TaskSpec] = {
    DEFAULT_TASK: TaskSpec(unit="text", head="softmax"),
    "generation": TaskSpec(unit="token", head="vocabulary", classifier=False),
    "multi-label": TaskSpec(unit="text", head="sigmoid", several=True),
    "spans": TaskSpec(unit="word", head="spans", classifier=False, several=True),
    "regression": TaskSpec(unit="text", head="number", labels=(VALUE,)),
}
"""Every task that a backbone's manifest can name; `core.bus.tasks.register_task` adds to them."""
