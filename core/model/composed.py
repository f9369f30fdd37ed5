"""A composition in memory: one backbone, one bus, immutable; it answers texts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import torch
from torch import Tensor

from ...registry.errors import MissingError, UsageError
from ..backbones.backbone import Backbone
from ..batching import batched_slices
from ..bus.bus import BACKBONE, Bus
from ..bus.tasks import NONE, Prediction, Unit
from ..routers.cards import Card
from ..types import BackgroundRow, Row, as_list


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the host answers to one text.

    Attributes:
        input: The text.
        label: The most probable label; where numbers are answered, the number as text.
        probability: Its probability, 0–1; None for a number.
        weights: α by column: the weight of each expert.
        generation: The generation that answered.
        value: The number, where numbers are answered.
        cut: How many tokens of the text were read, where it has more; None where all were.
    """

    input: str
    label: str
    probability: float | None
    weights: dict[str, float]
    generation: int | None
    value: float | None = None
    cut: int | None = None

    def _repr_html_(self) -> str:
        bars = "".join(
            f"<div>{escape(c)} <progress value='{a:.4f}' max='1'></progress> {a:.2f}</div>"
            for c, a in sorted(self.weights.items(), key=lambda pair: -pair[1])
        )
        sure = "" if self.probability is None else f"{self.probability:.2f}, "
        return (
            f"<p>{escape(self.input)} → <b>{escape(self.label)}</b> "
            f"({sure}generation {self.generation})</p>{bars}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class ComposedModel:
    """A backbone and a bus with its cards.

    Attributes:
        backbone: What encodes texts.
        bus: What answers.
        cards: The experts' routing cards, by id.
        background: The backbone's background card.
        evaluation: The backbone's held-out rows.
        fingerprint: The backbone's.
        router_kind: The router's kind.
        seed: The seed the router was trained from.
        generation: The number it was published under, if it was.
    """

    backbone: Backbone
    bus: Bus
    cards: Mapping[str, Card]
    background: tuple[BackgroundRow, ...]
    evaluation: tuple[Row, ...]
    fingerprint: str
    router_kind: str
    seed: int
    generation: int | None = None

    def answer(self, texts: str | Iterable[str]) -> list[Answer]:
        """Answer one text, or texts one by one in the order given.

        Raises:
            InputTypeError: If it is anything else.
        """
        texts = as_list(texts, str, "text")
        answers_labels(self, "whole texts")
        if not texts:
            return []
        with torch.inference_mode():
            p, alpha = self.bus(self.backbone.encode(texts))
        predictions, answers = self.bus.task.head.read(p, self.bus.labels), []
        cuts = self.backbone.cuts(texts)
        for text, answer, row, cut in zip(texts, predictions, alpha.tolist(), cuts, strict=True):
            weights = dict(zip(self.bus.columns, row, strict=True))
            heaviest = max(weights, key=weights.__getitem__)
            alone = heaviest == BACKBONE and self.backbone.classifier is None
            # A number of no expert is declined, as a class is.
            declined = alone and answer.value is not None
            prediction = Prediction(label=NONE) if declined else answer
            answers.append(
                Answer(
                    input=str(text),  # a table may hold a kind of its own
                    label=prediction.label,
                    probability=prediction.probability,
                    value=prediction.value,
                    weights=weights,
                    generation=self.generation,
                    cut=cut,
                )
            )
        return answers

    def accuracy(self, h: Tensor, rows: Sequence[Row]) -> dict[str, float]:
        """Return the accuracy by domain for features ``(N, D)`` of labelled rows."""
        with torch.inference_mode():
            hits = [
                self.bus.task.head.right(self.bus(h[piece])[0], rows[piece], self.bus.labels)
                for piece in batched_slices(len(rows), cost=self.bus.answers)
            ]
        return by_domain(torch.cat(hits), rows)

    def evaluation_rows(self, rows: Iterable[Row] | None) -> list[Row]:
        """Return the rows to evaluate on: those given, or the backbone's own held-out rows.

        Raises:
            InputTypeError: If what is given is no rows.
            MissingError: If none are given and the backbone ships none.
        """
        chosen = list(self.evaluation) if rows is None else as_list(rows, Row, "row")
        if not chosen:
            raise MissingError(
                f"backbone {self.backbone.name!r} ships no evaluation rows",
                hint="Give some with --data FILE.",
            )
        return chosen

    def oracle_weights(self, rows: Sequence[Row]) -> Tensor:
        """Return α ``(N, K)`` with each row's own expert at 1; zero where it is not composed."""
        owner = self.owners(rows)
        alpha = torch.zeros(len(rows), len(self.bus.columns))
        own = owner >= 0
        alpha[own, owner[own]] = 1.0
        return alpha

    def owners(self, rows: Sequence[Row]) -> Tensor:
        """Return the column of each row's own expert, ``(N,)``; −1 where it is not composed."""
        place: dict[str | None, int] = {i: k for k, i in enumerate(self.bus.ids)}
        return torch.tensor([place.get(r.domain, -1) for r in rows], dtype=torch.int64)


def answers_labels(model: ComposedModel, what: str) -> None:
    """Check that a composition answers whole texts.

    Raises:
        UsageError: If it answers next tokens.
    """
    if model.backbone.task.unit is Unit.TOKEN:
        raise UsageError(
            f"backbone {model.backbone.name!r} tells next tokens, not {what}",
            expected="a backbone that answers labels or numbers",
            found=model.backbone.task.name,
            hint="Use 'redhost generate', or 'redhost evaluate' for bits per byte.",
        )


def by_domain(hits: Tensor, rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of ``(N,)`` by domain, in sorted order; rows without one count nowhere."""
    domains = sorted({r.domain for r in rows if r.domain is not None})
    place: dict[str | None, int] = {d: k for k, d in enumerate(domains)}
    owner = torch.tensor([place.get(r.domain, len(domains)) for r in rows], dtype=torch.int64)
    count = torch.bincount(owner, minlength=len(domains) + 1)
    total = torch.zeros(len(domains) + 1, dtype=torch.float64).index_add(0, owner, hits.double())
    means = total[:-1] / count[:-1]
    return dict(zip(domains, means.tolist(), strict=True))
