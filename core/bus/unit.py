"""Units: what a row of the bus is, and how texts become rows and outputs become their answers.

A row is a whole text (`WholeText`), or in plugins a word or a token of one. Another unit is a
subclass of `Unit`, given to `register_task` with its task.

Legend: N texts, R rows of a text, T tokens, D width, L labels.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar

import torch
from torch import Tensor

from ..types import Row
from .head import Head, Prediction
from .layout import FeatureLayout


class WholeEncoder(Protocol):
    """What a whole text needs of an encoder."""

    def encode(
        self,
        texts: Sequence[str],
        *,
        compute: Callable[[Tensor], Tensor] | None = None,
        alone: bool = True,
    ) -> Tensor:
        """Return h ``(N, D)`` of texts, or what `compute` returns for their token ids."""
        ...

    def tokens(self, text: str) -> list[int]:
        """Return the token ids of a text; raise UsageError if it has none."""
        ...

    def pool(self, states: Tensor, /) -> Tensor:
        """Return h ``(B, D)`` of states ``(B, T, D)``."""
        ...

    def batches(
        self, texts: Sequence[str], *, most: int | None = None
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Yield the indices of texts of equal length, and their token ids ``(B, T)``."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """One pass of the encoder in training: texts of equal length, N rows.

    Attributes:
        ids: The token ids, ``(B, T)``.
        targets: The rows' targets, ``(N,)``.
    """

    ids: Tensor
    targets: Tensor


class Inside(Protocol):
    """What acts inside the encoder's blocks (`backbones.interventions.Intervention`)."""

    @property
    def changes_h(self) -> bool:
        """Whether it changes h."""
        ...

    @property
    def rowwise(self) -> bool:
        """Whether it changes each token independently."""
        ...


class TextAnswers:
    """Texts whose rows' outputs are read as answers; here each text is one row."""

    def predictions(self, head: Head, p: Tensor, labels: Sequence[str]) -> list[Prediction]:
        """Return the answer to each text.

        Args:
            head: The head, with what authors fitted for the labels.
            p: The bus output for all rows of the texts, in order.
            labels: The L labels.
        """
        return head.read(p, labels)

    def by_column(
        self, heads: Sequence[Head], p: Tensor, labels: Sequence[Sequence[str]]
    ) -> Iterator[list[Prediction]]:
        """Yield the answers of several experts to each text, from their outputs ``(n, R, L_i)``.

        Args:
            heads: The head of each, n of them.
            p: The outputs for all rows of the texts.
            labels: The L_i labels of each.
        """
        # All are of one class, and differ only in what their authors fitted.
        yield from heads[0].read_columns(heads, p, labels)

    def first(self, rows: Tensor) -> Tensor:
        """Return the first row of each text ``(N, …)``, whose weights are those of the text."""
        return rows

    def most(self, p: Tensor) -> Tensor:
        """Return each label's largest probability in each text ``(N, L)``."""
        return p


Encoder_contra = TypeVar("Encoder_contra", contravariant=True)


class Unit(ABC, Generic[Encoder_contra]):
    """What a row of the bus is.

    Attributes:
        name: Its name in `TaskSpec.unit`.
        does: What backbones with this unit do, for messages.
        router: The kind of router used by default for such rows; `composition.choose` resolves
            ``auto``.
        whole: Whether a row is a whole text.
        generates: Whether a row's answer is what follows in its text, so that texts are continued
            rather than answered, and the encoder's own output head is the classifier.
        classifier: Whether its backbones may have labels and a classifier.
        instead: Where texts are continued: what is predicted instead of answers, for messages.
        silence: Whether texts of other domains are known to have no answers of an expert's own.
        pooling: The pooling its backbones need; None for any.
    """

    name: ClassVar[str]
    does: ClassVar[str]
    router: ClassVar[str] = "auto"
    whole: ClassVar[bool] = False
    generates: ClassVar[bool] = False
    classifier: ClassVar[bool] = True
    instead: ClassVar[str] = ""
    silence: ClassVar[bool] = True
    pooling: ClassVar[Literal["first", "last", "mean"] | None] = None

    @property
    def recipe(self) -> Any:
        """The steps from an author's rows to an expert (`TaskRecipe`); None for labelled texts."""
        return None

    @property
    def pipeline(self) -> type[Any] | None:
        """Makes the pipeline of a host (`redhost.pipelines`); None for one of redhost's own."""
        return None

    def first_output(self, model: Any) -> Mapping[str, Sequence[float]] | None:
        """Return the numbers of a first output, by text; None where texts are answered.

        Args:
            model: A composition (`ComposedModel`) that has not predicted anything yet.
        """
        return None

    @abstractmethod
    def require(self, trunk: Encoder_contra, text: str) -> None:
        """Check that a text has rows.

        Raises:
            UsageError: If it has none.
        """

    @abstractmethod
    def rows(self, trunk: Encoder_contra, rows: Sequence[Row]) -> list[Row]:
        """Return the labelled rows of labelled texts, in the order of `encode`."""

    @abstractmethod
    def states(self, trunk: Encoder_contra, texts: Sequence[str]) -> list[Tensor]:
        """Return what each text's rows are made of, ``(T, D)``; the feature cache stores it."""

    @abstractmethod
    def features(self, states: Tensor, layout: FeatureLayout | None, *, eps: float) -> Tensor:
        """Return the rows h̃ ``(R, …)`` of one text's states; h without a layout.

        Args:
            states: What `states` returned for the text.
            layout: The segments of h̃.
            eps: ε of the bus norm.
        """

    def encode(
        self,
        trunk: Encoder_contra,
        texts: Sequence[str],
        layout: FeatureLayout | None,
        *,
        width: int,
        eps: float,
    ) -> Tensor:
        """Return the rows of all texts, h or h̃ ``(N, …)``.

        Args:
            trunk: The encoder.
            texts: The texts.
            layout: The segments of h̃.
            width: D.
            eps: ε of the bus norm.
        """
        return self.joined(self.states(trunk, texts), layout, width=width, eps=eps)

    def joined(
        self,
        states: Sequence[Tensor],
        layout: FeatureLayout | None,
        *,
        width: int,
        eps: float,
    ) -> Tensor:
        """Return the rows of all texts ``(N, …)``, given the states of each."""
        rows = [self.features(h, layout, eps=eps) for h in states]
        if rows:
            return torch.cat(rows)
        # No texts: an empty table still needs the width, which routers and caches check.
        wide = layout is not None and bool(layout.segments)
        return torch.empty(0, self.layout(width).total_width if wide else width)

    def passed(
        self,
        trunk: Encoder_contra,
        texts: Sequence[str],
        states: Callable[[Tensor], Tensor],
        *,
        alone: bool,
    ) -> Tensor:
        """Return the rows ``(N, D)`` of texts under an intervention that `refuses_inside` allows.

        Args:
            trunk: The encoder.
            texts: The texts.
            states: Token ids ``(B, T)`` → states ``(B, T, D)`` of a pass with the intervention.
            alone: Whether each text needs a pass of its own.
        """
        raise NotImplementedError

    def passes(
        self, trunk: Any, texts: Sequence[str], targets: Callable[[], Tensor], *, most: int
    ) -> Iterator[Pass]:
        """Yield texts in passes, to train an expert that `refuses_inside` allows.

        Args:
            trunk: The encoder.
            texts: The texts.
            targets: Returns the target of each, ``(N,)``.
            most: Most texts in a pass.
        """
        answers = targets()
        for index, ids in trunk.batches(texts, most=most):
            # A device other than a CPU gets full batches, which repeat their first text.
            yield Pass(ids=ids[: len(index)], targets=answers[index])

    def pooled(self, trunk: Any, states: Tensor) -> Tensor:
        """Return the rows ``(N, D)`` of the states ``(B, T, D)`` of a pass."""
        pooled: Tensor = trunk.pool(states)
        return pooled

    def layout(self, width: int) -> FeatureLayout:
        """Return the layout of h̃, with the segments that only the router reads, for a width D."""
        return FeatureLayout(width=width)

    def refuses_inside(self, acts: Inside | None) -> str | None:
        """Return what is expected in place of an expert inside the blocks; None if it may act.

        Args:
            acts: Its intervention; None for taps that are only named so far.
        """
        return None

    def check_trunk(self, trunk: Encoder_contra) -> None:
        """Check, when a backbone is made, that its encoder has all that rows need.

        Raises:
            UsageError: If it does not.
        """
        return

    def routed(self, trunk: Any, texts: Sequence[str], *, width: int, eps: float) -> Tensor:
        """Return h̃ ``(N, …)`` by which each text is routed as a whole; by default its h.

        Args:
            trunk: The encoder.
            texts: The texts.
            width: D.
            eps: ε of the bus norm.
        """
        h: Tensor = trunk.encode(texts)
        return h

    def router_rows(self, trunk: Encoder_contra, texts: Sequence[str], rows: Tensor) -> Tensor:
        """Return those of the rows of texts that a router is trained on; by default all."""
        return rows

    def gate_places(self, labels: Sequence[str]) -> Tensor | None:
        """Return the indices of the rows that gates use, given all rows' labels; None for all."""
        return None

    def byte_counts(self, trunk: Encoder_contra, texts: Sequence[str]) -> list[int]:
        """Return the number of UTF-8 bytes that the rows of each text stand for."""
        return [len(text.encode()) for text in texts]

    def answers(self, trunk: Encoder_contra, texts: Sequence[str]) -> TextAnswers:
        """Return the texts with what is needed to read their rows' outputs as answers."""
        return TextAnswers()


@dataclass(frozen=True)
class WholeText(Unit[WholeEncoder]):
    """Each text is one row, h."""

    name, does, whole = "text", "answers whole texts", True

    def require(self, trunk: WholeEncoder, text: str) -> None:
        """Check that a text has tokens."""
        trunk.tokens(text)

    def rows(self, trunk: WholeEncoder, rows: Sequence[Row]) -> list[Row]:
        """Return the texts themselves."""
        return list(rows)

    def states(self, trunk: WholeEncoder, texts: Sequence[str]) -> list[Tensor]:
        """Return h ``(1, D)`` of each text."""
        return list(torch.split(trunk.encode(texts), 1))

    def features(self, states: Tensor, layout: FeatureLayout | None, *, eps: float) -> Tensor:
        """Return h ``(1, D)``; segments are computed from the text."""
        return states

    def encode(
        self,
        trunk: WholeEncoder,
        texts: Sequence[str],
        layout: FeatureLayout | None,
        *,
        width: int,
        eps: float,
    ) -> Tensor:
        """Return h ``(N, D)``."""
        # Segments are computed from the texts (`Backbone.encode`), not from h.
        return trunk.encode(texts)

    def passed(
        self,
        trunk: WholeEncoder,
        texts: Sequence[str],
        states: Callable[[Tensor], Tensor],
        *,
        alone: bool,
    ) -> Tensor:
        """Return the pooled states ``(N, D)``."""
        return trunk.encode(texts, compute=lambda ids: trunk.pool(states(ids)), alone=alone)
