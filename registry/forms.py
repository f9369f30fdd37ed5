"""The forms an expert can have, and the tensors each ships: the one place that lists them.

A form is a name for a set of tensors. What they compute follows from which they are
(`core.experts`), so a form that puts known tensors together in another way is one more entry here.

Letters: D the width it reads, R its rank, O what it writes: D of `hidden` states, the backbone's
classes of `logits`, its own number of `labels`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FORMS", "Form", "Shapes"]

Shapes = dict[str, tuple[int, ...]]
"""Tensor name → shape."""


@dataclass(frozen=True, kw_only=True)
class Form:
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


FORMS: Mapping[str, Form] = {
    "residual": Form(
        tensors={"U": "RD", "V": "OR"},
        own={"U": "RD", "V": "DR", "W": "OD", "b": "O"},
    ),
    "linear": Form(tensors={"W": "OD", "b": "O"}),
    "mlp": Form(tensors={"U": "RD", "u": "R", "V": "OR", "v": "O"}),
}
"""Every form of the host's own, by the name that manifests use."""
