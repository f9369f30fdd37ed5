"""Two generations behind one address: a canary answers a share of the requests, or mirrors all.

If both use the same backbone and neither has modules inside it, texts are encoded once for both. A
request is never split, and its answer names the generation that answered.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

import redhost
from redhost.plugins import Observe, shared_features

__all__ = [
    "CANARY",
    "KEY",
    "STAGE",
    "Labelled",
    "Pair",
    "Question",
    "ScoredAnswer",
    "Trial",
    "is_right",
    "score",
]

STAGE, KEY = "x-redhost-stage", "x-redhost-key"
"""Headers: the stage that should answer, and the key of the draw (e.g. the user)."""
CANARY = "canary"

Pair = tuple[redhost.Answer, redhost.Answer]
"""The answers of production and of the canary to one text."""


@dataclass(frozen=True)
class Question:
    """A text, and whether the canary answers it."""

    text: str
    canary: bool = False


@dataclass(frozen=True)
class Labelled:
    """A text and its right label."""

    text: str
    label: str


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer to a labelled text, and whether it is right."""

    answer: redhost.Answer
    right: bool


def score(
    models: Sequence[redhost.ComposedModel], labelled: Sequence[Labelled]
) -> list[tuple[ScoredAnswer, ...]]:
    """Answer labelled texts with one or more generations, each scored by its own head.

    Returns:
        For each text the scored answer of each generation, in their order.

    Raises:
        UsageError: If a label is not a possible answer.
    """
    texts = [x.text for x in labelled]
    answers = [
        m.answer(texts, features=h)
        for m, h in zip(models, shared_features(models, texts), strict=True)
    ]
    return [
        tuple(ScoredAnswer(a, is_right(m, a, x.label)) for m, a in zip(models, given, strict=True))
        for x, *given in zip(labelled, *answers, strict=True)
    ]


def is_right(model: redhost.ComposedModel, answer: redhost.Answer, label: str) -> bool:
    """Return whether an answer is right: numbers after rounding, labels in any order.

    Args:
        model: A generation.
        answer: An answer of it.
        label: The right answer, in text form.

    Raises:
        UsageError: If the label is not a valid answer.
    """
    head = model.bus.task.head
    if (right := head.canonical(label, answer.input)) is None:
        raise redhost.UsageError(
            f"a right label cannot be read where {head.noun} are answered",
            expected=head.expected(label) or head.noun,
            found=repr(label)[:40],
        )
    # Declining is written like a label that an expert may have.
    return answer.label == right and not (answer.declined and right in model.bus.labels)


@dataclass(frozen=True, eq=False, kw_only=True)
class Trial:
    """A canary: a generation on trial, in addition to the served one.

    Attributes:
        model: The generation.
        share: Share of the requests that it answers, 0–1.
        mirror: Whether it also receives all other requests, for comparison.
        salt: Salt of the draws; another trial draws other requests.
        counts: By the expert with the largest weight: texts, agree, declined, canary_declined,
            only_canary_declined and only_declined; of labelled texts better, worse and same.
    """

    model: redhost.ComposedModel
    share: float = 0.0
    mirror: bool = False
    salt: str = ""
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def chooses(self, headers: Mapping[str, str], text: str) -> bool:
        """Return whether the canary answers a request.

        Args:
            headers: The request's headers: ``X-Redhost-Stage`` selects the stage; otherwise the
                share is drawn by ``X-Redhost-Key``, so that a user stays with one generation.
            text: The first text, which is the key of the draw if there is no header.
        """
        if (stage := headers.get(STAGE)) is not None:
            return stage == CANARY
        drawn = hashlib.blake2b(f"{self.salt}:{headers.get(KEY, text)}".encode(), digest_size=8)
        return int.from_bytes(drawn.digest()) < self.share * 2**64

    def answer(
        self,
        production: redhost.ComposedModel,
        questions: Sequence[Question],
        *,
        observe: Observe | None = None,
    ) -> list[redhost.Answer]:
        """Answer a batch, each text with its generation; compare the texts that both answer.

        Args:
            production: The served generation.
            questions: The batch.
            observe: Called with the features that production reads and its router's weights.
        """
        texts = [q.text for q in questions]
        mine = [n for n, q in enumerate(questions) if q.canary]
        if not mine and not self.mirror:
            return production.answer(texts, observe=observe)
        h, h_trial = shared_features((production, self.model), texts)
        rows = [n for n, q in enumerate(questions) if not q.canary]
        answers = dict(zip(rows, _some(production, texts, h, rows, observe), strict=True))
        read = list(range(len(texts))) if self.mirror else mine
        tried = dict(zip(read, _some(self.model, texts, h_trial, read), strict=True))
        both = sorted(answers.keys() & tried.keys())
        self.count([(answers[n], tried[n]) for n in both])
        return [tried[n] if q.canary else answers[n] for n, q in enumerate(questions)]

    def count(self, pairs: Sequence[Pair]) -> None:
        """Count pairs of answers, by the expert with the largest weight in production."""
        with self._counting:
            for first, second in pairs:
                counts = self._counts_of(first)
                counts["texts"] += 1
                counts["agree"] += first.label == second.label
                counts["declined"] += first.declined
                counts["canary_declined"] += second.declined
                counts["only_canary_declined"] += second.declined > first.declined
                counts["only_declined"] += first.declined > second.declined

    def count_labelled(self, scored: Sequence[tuple[ScoredAnswer, ...]]) -> None:
        """Count which of the two is right, by the same expert."""
        with self._counting:
            for first, second in scored:
                better = "better" if second.right > first.right else "same"
                how = "worse" if first.right > second.right else better
                self._counts_of(first.answer)[how] += 1

    def _counts_of(self, answer: redhost.Answer) -> Counter[str]:
        expert = max(answer.weights, key=answer.weights.__getitem__)
        return self.counts.setdefault(expert, Counter())

    def counted(self) -> dict[str, dict[str, int]]:
        """Return the counts so far, by expert."""
        with self._counting:
            return {expert: dict(counts) for expert, counts in self.counts.items()}


def _some(
    model: redhost.ComposedModel,
    texts: Sequence[str],
    h: Tensor | None,
    rows: list[int],
    observe: Observe | None = None,
) -> list[redhost.Answer]:
    """Answer some of the texts, whose features may be given."""
    features = None if h is None else h[rows]
    return model.answer([texts[n] for n in rows], features=features, observe=observe)
