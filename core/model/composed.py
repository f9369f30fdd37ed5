"""A composition in memory: one backbone and one bus, immutable, that answer texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape

import msgspec
import torch
from msgspec import UNSET, UnsetType
from torch import Tensor

from ...registry.errors import MissingError, UsageError
from ..backbones.backbone import Backbone
from ..backbones.interventions.layout import encode_chosen
from ..batching import batched_slices
from ..bus.bus import BACKBONE, Bus
from ..bus.head import Prediction
from ..bus.layout import WideNorm
from ..bus.signals import QUERY, SIGNALS
from ..routers.cards import Card
from ..types import BackgroundRow, FoundSpan, Row, as_list
from .conformal import Calibration, familiarity, groups_of, label_sets, too_few
from .each import ExpertAnswer, answers_by_expert
from .moments import Moments
from .route import Chooser

Observe = Callable[[Tensor, Tensor], None]
"""Called with features ``(N, D)`` and weights ``(N, K)`` of the answered texts."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The host's answer to one text.

    Attributes:
        input: The text.
        label: The most probable label; for regression, the number as text.
        probability: Its probability, 0–1; None for a number.
        weights: α by column: the weight of each expert.
        generation: The generation that answered.
        value: The number, for regression.
        cut: The number of tokens read if the text has more; None if all were read.
        declined: Whether the text is declined as out of distribution; the label is then `none`.
        labels: The label set that was asked for, the most probable first; None if none was. In a
            multi-label task, the labels in the answer, sorted.
        scores: In a multi-label task, the probability of each label, 0–1; for spans, that of the
            word with the highest probability of the label.
        spans: For spans, those found, sorted; None for other tasks.
        by_expert: Each expert's own answer, by id; None if not asked for.
        questions: The answers to the named questions, by name; absent if none is composed.
    """

    input: str
    label: str
    probability: float | None
    weights: dict[str, float]
    generation: int | None
    value: float | None = None
    cut: int | None = None
    declined: bool = False
    labels: tuple[str, ...] | None = None
    by_expert: dict[str, ExpertAnswer] | None = None
    questions: dict[str, Answer] | UnsetType = UNSET
    scores: dict[str, float] | None = None
    spans: tuple[FoundSpan, ...] | None = None

    def _repr_html_(self) -> str:
        bars = "".join(
            f"<div>{escape(c)} <progress value='{a:.4f}' max='1'></progress> {a:.2f}</div>"
            for c, a in sorted(self.weights.items(), key=lambda pair: -pair[1])
        )
        sure = "" if self.probability is None else f"{self.probability:.2f}, "
        return (
            f"<p>{escape(self.input)} → <b>{escape(self.label)}</b> "
            f"({sure}{'declined, ' * self.declined}generation {self.generation})</p>{bars}"
            + "".join(f"<b>{escape(q)}</b>{a._repr_html_()}" for q, a in self.named.items())
        )

    @property
    def named(self) -> dict[str, Answer]:
        """The answers to the named questions, by name; empty if none is composed."""
        return self.questions or {}


@dataclass(frozen=True, kw_only=True, eq=False)
class ComposedModel:
    """A backbone and a bus with its cards.

    Attributes:
        backbone: The encoder of texts.
        bus: Router, experts and classifier.
        cards: The experts' routing cards, by id.
        background: The backbone's background card.
        evaluation: The backbone's held-out rows.
        fingerprint: The backbone's fingerprint.
        router_kind: The router's kind.
        seed: The seed of the router's training.
        generation: The number it was published under, if any.
        calibration: Scores of gate rows; None without any.
        decline: ε: the share of the experts' own texts that may be declined, 0–1; None for no such
            limit.
        moments: The moments of the experts' cards; None before the composition is complete.
        digests: The digests of the experts' packages, by id; empty if it was made of none.
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
    calibration: Calibration | None = None
    decline: float | None = None
    moments: Moments | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    def answer(
        self,
        texts: str | Iterable[str],
        *,
        sets: float | None = None,
        each: bool = False,
        features: Tensor | None = None,
        observe: Observe | None = None,
    ) -> list[Answer]:
        """Answer one text, or several texts in the order given.

        Args:
            texts: The texts.
            sets: The coverage of label sets: how often the right label is in the set, 0–1; None
                for no sets.
            each: Whether every expert also answers on its own (`by_expert`).
            features: What `shared_features` returned for the texts ``(N, …)``; None encodes them.
            observe: Called with the features and the weights of the bus.

        Raises:
            InputTypeError: If the texts are of another type.
            UsageError: If label sets are not available.
        """
        texts = as_list(texts, str, "text")
        self.check_answers(sets=sets)
        if not texts:
            return []
        with torch.inference_mode():
            h = features
            if h is None:
                h = self.backbone.encode(texts) if each else self.features(texts)
            head, (p, alpha) = self.bus.task.head, self.bus(h)
            read = self.bus.task.unit.answers(self.backbone.trunk, texts)
            predictions = read.predictions(head, p, self.bus.labels)
            by_expert: Sequence[dict[str, ExpertAnswer] | None] = [None] * len(texts)
            if each:
                by_expert = answers_by_expert(
                    self.bus, h, calibration=self.calibration, share=self.decline, texts=read
                )
            h, p, alpha = read.first(h), read.most(p), read.first(alpha)
            if observe is not None:
                observe(h, alpha)
            declined = self.declines(h, p, alpha).tolist()
            labels: Sequence[tuple[str, ...] | None] = [None] * len(texts)
            if sets is not None and self.calibration is not None:
                labels = label_sets(
                    self.bus, p, alpha, calibration=self.calibration, share=1 - sets
                )
        return self._as_answers(
            texts,
            [
                head.declined(row, self.bus.labels, shared=bool(self.bus.shared_labels))
                if no
                else answer
                for no, answer, row in zip(declined, predictions, p, strict=True)
            ],
            alpha,
            declined=declined,
            labels=labels,
            by_expert=by_expert,
        )

    def check_answers(self, *, sets: float | None = None) -> None:
        """Check that texts can be answered, with label sets at a level if one is given.

        Args:
            sets: As for `answer`.

        Raises:
            UsageError: If they cannot be answered.
        """
        answers_labels(self, "whole texts")
        if sets is None:
            return
        if not 0 < sets < 1:
            raise UsageError("a label set", expected="a level between 0 and 1", found=str(sets))
        if not self.bus.task.one_label:
            raise UsageError(
                "label sets of a level are of one right label",
                expected="a backbone whose task is classification",
                found=self.bus.task.name,
                hint="Leave --set out.",
            )
        if self.calibration is None:
            raise UsageError(
                "this generation has no calibration for label sets",
                expected="cards with gate rows",
                found=f"generation {self.generation}",
                hint="Run 'redhost recompose'; statistics cards have no gate rows.",
            )

    def _as_answers(
        self,
        texts: Sequence[str],
        predictions: Sequence[Prediction],
        alpha: Tensor,
        *,
        declined: Sequence[bool],
        labels: Sequence[tuple[str, ...] | None],
        by_expert: Sequence[dict[str, ExpertAnswer] | None],
    ) -> list[Answer]:
        """Return the answers to N texts, from their predictions, α ``(N, K)`` and other results."""
        cuts = self.backbone.cuts(texts)
        return [
            Answer(
                input=str(text),  # a table may hold a string type of its own
                label=prediction.label,
                probability=prediction.probability,
                value=prediction.value,
                weights=dict(zip(self.bus.columns, row, strict=True)),
                generation=self.generation,
                cut=cuts[n],
                declined=declined[n],
                labels=labels[n] if prediction.labels is None else prediction.labels,
                by_expert=by_expert[n],
                scores=None if prediction.scores is None else {**prediction.scores},
                spans=prediction.spans,
            )
            for n, (text, prediction, row) in enumerate(
                zip(texts, predictions, alpha.tolist(), strict=True)
            )
        ]

    def _require_whole_texts(self, what: str, hint: str) -> None:
        """Check that a row of the bus is a whole text.

        Raises:
            UsageError: If it is a word.
        """
        if not self.backbone.task.unit.whole:
            raise UsageError(
                f"{self.backbone.task.head.noun}, not {what}",
                expected="a backbone that answers whole texts",
                found=f"{self.backbone.name!r}, which {self.backbone.task.unit.does}",
                hint=hint,
            )

    def probabilities(self, texts: str | Iterable[str]) -> Tensor:
        """Return p(y|x) over the bus's `labels` ``(N, L)`` of texts in the order given.

        Raises:
            InputTypeError: If the texts are of another type.
            UsageError: If the backbone does not answer labels of whole texts.
        """
        texts = as_list(texts, str, "text")
        answers_labels(self, "whole texts")
        hint = f"Take the {self.backbone.task.head.noun} of its answer."
        self._require_whole_texts("probabilities of a text", hint)
        with torch.inference_mode():
            p: Tensor = self.bus(self.features(texts))[0]
        return p

    @cached_property
    def chooser(self) -> Chooser:
        """The router alone, which selects an expert for a text without running any expert.

        Raises:
            UsageError: If the router queries experts.
        """
        norm = self.bus.norm
        return Chooser(
            backbone=self.backbone,
            norm=norm.norm if isinstance(norm, WideNorm) else norm,
            router=self.bus.router,
            columns=self.bus.columns,
            generation=self.generation,
        )

    def features(self, texts: Sequence[str]) -> Tensor:
        """Return h̃ ``(N, …)``; run in-trunk experts only for rows where they have a weight.

        This needs a router that reads z alone; under other routers they run for all rows. Segments
        that are not computed are left unknown, and add nothing.
        """
        backbone, layout, reads = self.backbone, self.backbone.layout, self.bus.router.reads
        inside = layout is not None and any(s.compute is not None for s in layout.segments)
        if layout is None or not inside or reads & {*SIGNALS, QUERY}:
            return backbone.encode(texts)
        ids = self.bus.ids
        readers = [[ids.index(i) for i in s.readers if i in ids] for s in layout.segments]

        def choose(h: Tensor) -> Tensor:
            active = self.bus.weights(self.bus.norm(h)) > 0
            return torch.stack([active[:, columns].any(-1) for columns in readers], dim=-1)

        return encode_chosen(backbone, texts, choose)

    def declines(self, h: Tensor, p: Tensor, alpha: Tensor) -> Tensor:
        """Return which rows are declined, ``(N,)``.

        These are rows that the router assigns to a backbone without answers of its own. With
        `decline` they also include rows less familiar than nearly all gate rows.

        Args:
            h: Features ``(N, D)``.
            p: The bus output ``(N, L)``.
            alpha: The weights ``(N, K)``.
        """
        declined = torch.zeros(len(p), dtype=torch.bool, device=p.device)
        if self.backbone.classifier is None and BACKBONE in self.bus.columns:
            to_backbone = alpha.argmax(-1) == self.bus.columns.index(BACKBONE)
            declined = self.bus.task.head.unclaimed(p, to_backbone)
        if (limits := self.decline_thresholds) is not None:
            t = limits.to(p.device)[groups_of(self.bus, alpha)]
            declined = declined | (familiarity(self.bus, h, p) < t)
        return declined

    @cached_property
    def decline_thresholds(self) -> Tensor | None:
        """The familiarity below which an expert's texts are declined, ``(E,)``; None for none."""
        calibration = self.calibration
        if not self.decline or calibration is None or calibration.familiarity is None:
            return None
        return calibration.thresholds(
            calibration.familiarity, self.decline, groups=len(self.bus.ids)
        )

    def set_warnings(self, level: float) -> tuple[str, ...]:
        """Return warnings on label sets of a level: experts with too few gate rows for it."""
        if self.calibration is None:
            return ()
        return too_few(self.calibration.rows(self.bus.ids), 1 - level)

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
            InputTypeError: If the rows are of another type.
            MissingError: If none are given and the backbone ships none.
        """
        chosen = list(self.evaluation) if rows is None else as_list(rows, Row, "row")
        if not chosen:
            raise MissingError(
                f"backbone {self.backbone.name!r} ships no evaluation rows"
                if rows is None
                else "there are no rows to evaluate on",
                hint="Give some with --data FILE.",
            )
        return chosen

    def oracle_weights(self, rows: Sequence[Row]) -> Tensor:
        """Return oracle weights α ``(N, K)``: each row's own expert at 1, or 0 if not composed."""
        owner = self.owners(rows)
        alpha = torch.zeros(len(rows), len(self.bus.columns))
        is_composed = owner >= 0
        alpha[is_composed, owner[is_composed]] = 1.0
        return alpha

    def owners(self, rows: Sequence[Row]) -> Tensor:
        """Return the column of each row's own expert, ``(N,)``; −1 if it is not composed."""
        place: dict[str | None, int] = {i: k for k, i in enumerate(self.bus.ids)}
        return torch.tensor([place.get(r.domain, -1) for r in rows], dtype=torch.int64)


def shared_features(models: Sequence[ComposedModel], texts: Sequence[str]) -> list[Tensor | None]:
    """Return h ``(N, D)`` of the same texts for several generations.

    Generations on one trunk share the h of one pass. The result is None for a generation with
    in-trunk experts, or with a trunk that no other has: each of these runs its own passes.

    Args:
        models: The generations.
        texts: N texts.
    """
    # Generations on one trunk share the object; classifier and layout may differ.
    trunks = [id(m.backbone.trunk) if m.backbone.layout is None else None for m in models]
    shared = {t for t in trunks if t is not None and trunks.count(t) > 1} if texts else set[int]()
    with torch.inference_mode():
        h = {t: models[trunks.index(t)].backbone.encode(texts) for t in shared}
    return [None if t is None else h.get(t) for t in trunks]


def answer_fields(answer: Answer) -> dict[str, object]:
    """Return an answer as the fields of a row: label, probability, and the expert behind it."""
    nobody: tuple[str | None, float | None] = (None, None)
    expert, weight = max(answer.weights.items(), key=lambda pair: pair[1], default=nobody)
    fields: dict[str, object] = {
        "answer": answer.label if answer.value is None else answer.value,
        "probability": answer.probability,
        "expert": expert,
        "weight": weight,
        "declined": answer.declined,
    }
    if answer.labels is not None:
        fields["answers"] = list(answer.labels)
    if answer.scores is not None:
        fields["scores"] = answer.scores
    if answer.spans is not None:
        fields["spans"] = [msgspec.structs.asdict(s) for s in answer.spans]
    if answer.by_expert is not None:
        fields["by_expert"] = {i: msgspec.structs.asdict(a) for i, a in answer.by_expert.items()}
    if answer.named:
        fields["questions"] = {name: answer_fields(a) for name, a in answer.named.items()}
    return fields


def answers_labels(model: ComposedModel, what: str) -> None:
    """Check that a composition answers whole texts.

    Raises:
        UsageError: If it continues texts.
    """
    unit = model.backbone.task.unit
    if unit.generates:
        raise UsageError(
            f"backbone {model.backbone.name!r} tells {unit.instead}, not {what}",
            expected="a backbone that answers labels or numbers",
            found=model.backbone.task.name,
            hint="Use 'redhost generate', or 'redhost evaluate' for bits per byte.",
        )


def by_domain(hits: Tensor, rows: Sequence[Row]) -> dict[str, float]:
    """Return the mean of ``(N,)`` by domain, in sorted order; skip rows without a domain."""
    domains = sorted({r.domain for r in rows if r.domain is not None})
    place: dict[str | None, int] = {d: k for k, d in enumerate(domains)}
    owner = torch.tensor([place.get(r.domain, len(domains)) for r in rows], dtype=torch.int64)
    count = torch.bincount(owner, minlength=len(domains) + 1)
    total = torch.zeros(len(domains) + 1, dtype=torch.float64).index_add(0, owner, hits.double())
    return dict(zip(domains, (total / count)[:-1].tolist(), strict=True))
