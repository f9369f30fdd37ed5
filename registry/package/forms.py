"""The forms an expert can have and the tasks a backbone can have: the one place that lists them.

A form is a name for a set of tensors. What they compute follows from which they are
(`core.bus.experts`), so a form that puts known tensors together in another way is one more entry
here. A plugin's form lists its tensors in the manifests that use it (`ExpertManifest.tensors`).

Letters: D the width it reads, R its rank, O what it writes: D of `hidden` states, the backbone's
classes of `logits`, its own number of `labels`.
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
        own: The same where the expert writes `labels` of its own; None where that is no different.
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
            space: Where the expert writes.
            width: D.
            rank: R; of no account for a form without one.
            out: O.
        """
        size = {"D": width, "R": rank, "O": out}
        return {n: tuple(size[x] for x in word) for n, word in self.letters(space).items()}

    def written(self, space: str) -> str:
        """Return the name of the matrix whose rows are what is written."""
        return next(n for n, word in self.letters(space).items() if word in {"OD", "OR"})


FORMS: Mapping[str, FormSpec] = {
    "residual": FormSpec(
        tensors={"U": "RD", "V": "OR"},
        own={"U": "RD", "V": "DR", "W": "OD", "b": "O"},
    ),
    "linear": FormSpec(tensors={"W": "OD", "b": "O"}),
    "mlp": FormSpec(tensors={"U": "RD", "u": "R", "V": "OR", "v": "O"}),
}
"""Every form of the host's own, by the name that manifests use."""

ADAPTER = "lora"
"""The form of a LoRA adapter, which acts inside the blocks: its tensors are those of PEFT's file
(`peft_adapter`), and beside them a linear head where it writes labels of its own."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """What can be known of a task without torch; `core.bus.tasks` has the rest.

    Attributes:
        unit: What a row of the bus is: a whole ``text``, each ``word`` of one, or each ``token``.
        head: The name of what answers a row.
        labels: The only labels its backbone may have; empty for any.
        classifier: Whether its backbone may bring labels and a classifier.
        several: Whether an answer is a set of labels, each of which has a threshold.
    """

    unit: str
    head: str
    labels: tuple[str, ...] = ()
    classifier: bool = True
    several: bool = False


VALUE = "value"
"""The one label of a backbone that answers numbers, and of its experts."""

DEFAULT_TASK = "classification"

TASKS: dict[str, TaskSpec] = {
    DEFAULT_TASK: TaskSpec(unit="text", head="softmax"),
    "generation": TaskSpec(unit="token", head="vocabulary", classifier=False),
    "multi-label": TaskSpec(unit="text", head="sigmoid", several=True),
    "spans": TaskSpec(unit="word", head="spans", classifier=False, several=True),
    "regression": TaskSpec(unit="text", head="number", labels=(VALUE,)),
}
"""Every task that a backbone's manifest can name; `core.bus.tasks.register_task` adds to them."""
