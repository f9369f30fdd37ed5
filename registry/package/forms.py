"""The forms of experts and the tasks of backbones; all of them are listed here.

A form is a name for a set of tensors. The tensors determine what is computed (`core.bus.experts`),
so another combination of known tensors needs only one more entry here. A plugin's form lists its
tensors and further files in the manifests that use it (`ExpertManifest.tensors`, `.files`).

Letters: D the width of the input, R the rank, O the width of the output: D for `hidden` states, the
backbone's classes for `logits`, the expert's own number of labels for `labels`.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

Shapes = dict[str, tuple[int, ...]]
"""Tensor name → shape."""


class SpaceSpec(Struct, frozen=True, kw_only=True):
    """A space that experts write to.

    Attributes:
        own_labels: Whether its experts predict labels of their own, without W_c.
        states: Whether they add to hidden states.
        logits: Whether they add to the logits of W_c.
    """

    own_labels: bool = False
    states: bool = False
    logits: bool = False

    def width(self, *, hidden: int, labels: int, classes: int) -> int:
        """Return the width of an expert's output.

        Args:
            hidden: D.
            labels: How many labels the expert has of its own.
            classes: C, the labels of the backbone's classifier.
        """
        return labels if self.own_labels else hidden if self.states else classes


SPACES: Mapping[str, SpaceSpec] = {
    "hidden": SpaceSpec(states=True),
    "logits": SpaceSpec(logits=True),
    "labels": SpaceSpec(own_labels=True),
}
"""Every space, by its name in manifests."""


class FormSpec(Struct, frozen=True, kw_only=True):
    """One form.

    Attributes:
        tensors: Tensor name → its dimensions, a letter each.
        labels_tensors: The same for an expert that writes `labels` of its own; None if there is no
            difference.
    """

    tensors: Mapping[str, str]
    labels_tensors: Mapping[str, str] | None = None

    @property
    def ranked(self) -> bool:
        """Whether it has a rank."""
        return any("R" in letters for letters in self.tensors.values())

    def letters(self, space: str) -> Mapping[str, str]:
        """Return tensor name → letters for an expert that writes to a space."""
        if SPACES[space].own_labels and self.labels_tensors is not None:
            return self.labels_tensors
        return self.tensors

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
        labels_tensors={"U": "RD", "V": "DR", "W": "OD", "b": "O"},
    ),
    "linear": FormSpec(tensors={"W": "OD", "b": "O"}),
    "mlp": FormSpec(tensors={"U": "RD", "u": "R", "V": "OR", "v": "O"}),
}
"""Every built-in form, by its name in manifests."""

PLUGIN_FORMS: Mapping[str, str] = {"lora": "peft", "words": "words"}
"""Form of a plugin of this project → the extra of redhost that installs it. Packages of such a form
are checked as those of any other plugin's are."""

FINAL = "final"
"""The tap at the end of the trunk: h itself."""

INSIDE = "inside"
"""The name under which a plugin makes and trains experts that read or write at a block, whatever
their form."""

OPEN = "open"
"""The name under which a plugin trains experts whose author leaves the form open."""


class TaskSpec(Struct, frozen=True, kw_only=True):
    """The properties of a task that need no torch; `core.bus.task` has the rest.

    Attributes:
        unit: The unit of a bus row: a whole ``text``, each ``token`` of one, or a plugin's.
        head: The name of the head that answers a row.
        noun: What its answers are called in messages.
        labels: The only labels its backbone may have; empty for any.
        classifier: Whether its backbone may have labels and a classifier.
        several: Whether an answer is a set of labels, each with a threshold.
        generates: Whether a row's answer is what follows in its text: rows have no labels, experts
            are causal, and the classifier is the encoder's own output head.
    """

    unit: str
    head: str
    noun: str = "labels"
    labels: tuple[str, ...] = ()
    classifier: bool = True
    several: bool = False
    generates: bool = False


VALUE = "value"
"""The one label of a regression backbone, and of its experts."""

DEFAULT_TASK = "classification"

TASKS: dict[str, TaskSpec] = {
    DEFAULT_TASK: TaskSpec(unit="text", head="softmax"),
    "generation": TaskSpec(
        unit="token", head="vocabulary", noun="tokens", classifier=False, generates=True
    ),
    "multi-label": TaskSpec(unit="text", head="sigmoid", noun="sets of labels", several=True),
    "regression": TaskSpec(unit="text", head="number", noun="numbers", labels=(VALUE,)),
    "spans": TaskSpec(unit="word", head="spans", noun="spans", classifier=False, several=True),
}
"""Every task that a backbone's manifest can name; `core.tasks.register_task` adds to them."""

PLUGIN_TASKS: Mapping[str, str] = {"generation": "generate", "spans": "spans"}
"""Task of a plugin of this project → the extra of redhost that installs it."""
