"""Explanations of answers: weights, every expert's own answer, words, the nearest card rows.

Rows are compared in z, the input of every expert and most routers, by the cosine of the text's and
the row's z. A card of `statistics` has no rows; the mean of each of its labels is used instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

import redhost
from redhost.core.model.conformal import familiarity, groups_of
from redhost.core.routers.cards import Card
from redhost_report.words import WORDS, WordEvidence, word_evidence

__all__ = ["Explanation", "Neighbour", "OwnAnswer", "explain"]

NEAREST = 5
"""Number of card rows that are shown, over all experts."""


class OwnAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one expert alone.

    Attributes:
        label: Its answer; a number as text.
        probability: Its probability, 0–1; None for a number.
        declined: Whether the text's familiarity is below the expert's threshold for declining.
        weight: The router's weight α of the expert.
    """

    label: str
    probability: float | None
    declined: bool
    weight: float


class Neighbour(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a card, or the mean of a label's rows where the card has sums.

    Attributes:
        expert: The expert of the card.
        label: Its label.
        text: Its text, if the card shows it.
        similarity: The cosine of its z and the text's, −1 to 1.
    """

    expert: str
    label: str
    text: str | None
    similarity: float


class Explanation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The explanation of one answer.

    Attributes:
        input: The text.
        label: The answer.
        probability: Its probability, 0–1; None for a number.
        declined: The reason why it is declined; None if it is not.
        generation: The generation that answers.
        router: Its router's kind.
        weights: α by column, the largest first.
        by_expert: The answer of each expert alone, the largest weight first.
        nearest: The nearest rows of all cards.
        words: The words that spoke for and against the answer, where the expert with the largest
            weight reads words, and where the router does.
    """

    input: str
    label: str
    probability: float | None
    declined: str | None
    generation: int | None
    router: str
    weights: dict[str, float]
    by_expert: dict[str, OwnAnswer]
    nearest: tuple[Neighbour, ...]
    words: tuple[WordEvidence, ...] = ()


def explain(host: redhost.Host, texts: Iterable[str], *, words: int = WORDS) -> list[Explanation]:
    """Explain the answers of a host's current generation.

    Args:
        host: The host.
        texts: The texts.
        words: The most words that are shown for an answer, and as many against it.

    Raises:
        UsageError: If the backbone generates text.
    """
    model, given = host.composed, list(texts)
    answers = model.answer(given, each=True)
    cards = [rows for card in model.cards.values() if (rows := _rows_of(host, model, card))]
    z = _router_input(model, model.backbone.encode(given)) if given else torch.zeros(0, 0)
    return [
        Explanation(
            input=answer.input,
            label=answer.label,
            probability=answer.probability,
            declined=_why_declined(model, text) if answer.declined else None,
            generation=answer.generation,
            router=model.router_kind,
            weights=dict(sorted(answer.weights.items(), key=lambda pair: -pair[1])),
            by_expert=_own_answers(answer),
            nearest=_nearest(row, cards),
            words=word_evidence(model, answer, z=row, most=words),
        )
        for text, answer, row in zip(given, answers, z, strict=True)
    ]


def _own_answers(answer: redhost.Answer) -> dict[str, OwnAnswer]:
    """Return the answer of each expert alone, the largest weight first."""
    own = answer.by_expert or {}
    return {
        i: OwnAnswer(
            label=own[i].label,
            probability=own[i].probability,
            declined=own[i].declined,
            weight=answer.weights[i],
        )
        for i in sorted(own, key=lambda i: -answer.weights[i])
    }


@dataclass(frozen=True, kw_only=True)
class CardRows:
    """The rows of a card: z ``(N, D)``, a label per row, and the texts if it has them."""

    expert: str
    z: Tensor
    labels: Sequence[str]
    texts: Sequence[str | None]


def _rows_of(host: redhost.Host, model: redhost.ComposedModel, card: Card) -> CardRows | None:
    """Return the rows of a card; None for a card without rows and sums."""
    texts: Sequence[str | None] = [r.text for r in card.rows]
    if card.rows:
        z = _router_input(model, host.encoder(model)([r.text for r in card.rows]))
        labels: Sequence[str] = [r.label for r in card.rows]
    elif card.z is not None and card.labels:
        z, labels = card.z, card.labels
    elif card.statistics is not None:
        z, labels = card.statistics.means.float(), card.statistics.labels
    else:
        return None
    return CardRows(expert=card.column, z=z, labels=labels, texts=texts or [None] * len(labels))


def _router_input(model: redhost.ComposedModel, h: Tensor) -> Tensor:
    """Return the router's input for features ``(N, D)``."""
    z: Tensor = model.bus.layout.router_input(model.bus.norm(h))
    return z


def _nearest(z: Tensor, cards: Sequence[CardRows]) -> tuple[Neighbour, ...]:
    """Return the rows nearest to z ``(D,)``."""
    found = list[Neighbour]()
    for card in cards:
        cosine = torch.nn.functional.cosine_similarity(card.z, z[None], dim=-1)
        best = cosine.topk(min(NEAREST, len(cosine)))
        for score, n in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            found.append(
                Neighbour(
                    expert=card.expert, label=card.labels[n], text=card.texts[n], similarity=score
                )
            )
    return tuple(sorted(found, key=lambda near: -near.similarity)[:NEAREST])


def _why_declined(model: redhost.ComposedModel, text: str) -> str:
    """Return why a declined text is declined, as one line."""
    with torch.inference_mode():
        p, alpha = model.bus(h := model.features([text]))
        column = int(groups_of(model.bus, alpha)[0])
        limits, score = model.decline_thresholds, None
        if limits is not None:
            score = float(familiarity(model.bus, h, p)[0])
    if limits is None or score is None or not score < float(limits[column]):
        return "the router leaves it to the backbone, which has no answer of its own"
    return (
        f"its familiarity {score:.2f} is below {float(limits[column]):.2f}, which all but "
        f"{model.decline or 0:.2%} of what {model.bus.ids[column]} answers reach"
    )
