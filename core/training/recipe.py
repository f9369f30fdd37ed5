"""Recipes: the steps from rows to a package, which depend on the backbone's task and the form.

`Recipe` is for texts with a label or a number, `GenerationRecipe` for text generation; the recipes
of adapters are in `training.adapter`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Self

import msgspec
import torch
from torch import Tensor

from ...registry.errors import HarmError, UsageError
from ...registry.package.manifest import BackboneRef, ExpertManifest, Noise, Training
from ...registry.package.project import ExpertPlan, check_noise, check_ranks
from ..backbones.backbone import Backbone
from ..backbones.interventions.layout import bus_part, check_taps, compute_features, inside_reader
from ..backbones.interventions.tap import FINAL, Tap, block_at
from ..backbones.tokens import byte_counts
from ..batching import batched_slices
from ..bus.bus import LayerNorm
from ..bus.experts import Expert, Space
from ..bus.label_set_head import EVEN
from ..bus.nested import at_each_rank
from ..bus.tasks import Unit
from ..digests import library_versions
from ..label_scores import count_answers, macro_f1, score_label_sets, score_labels
from ..model.spans import read_labels
from ..model.verify import measure_off_domain
from ..routers.domain_statistics import Statistics
from ..types import Progress, Row
from .baseline import HINT, refuse_below_constant, refuse_below_constant_set
from .context import AuthoringContext
from .data import FEW_GATE, DataSplits
from .expert import (
    ExpertRows,
    ExpertSettings,
    TrainedExpert,
    expert_logits,
    fit_temperature,
    init_expert,
    shown_temperature,
    train_expert,
)
from .in_trunk import train_inside
from .label_heads import solve_label_heads
from .linear_head import solve_linear_head
from .packaging import CardFile, ExpertDraft, statistics_card, texts_card, vectors_card

CANARIES = 8
"""Most vectors in a package's canary."""

Read = Callable[[Sequence[str]], Tensor]
"""Texts → the input of an expert, ``(N, D)``."""


@dataclass(frozen=True, kw_only=True)
class TrainedProject:
    """The result of training a project's expert.

    Attributes:
        manifest: The manifest of the package that was written.
        splits: The split of each row.
        cuts: For each row, the limit at which its tokens were cut; None if all were read.
    """

    manifest: ExpertManifest
    splits: DataSplits
    cuts: tuple[int | None, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Recipe:
    """The steps from rows with a label or a number to an expert's package.

    Attributes:
        plan: The kind of expert; `writes` is set.
        splits: The author's rows.
        context: The backbone with its manifest, background card and feature cache.
        settings: How to train.
    """

    plan: ExpertPlan
    splits: DataSplits
    context: AuthoringContext
    settings: ExpertSettings

    space: ClassVar[Space] = "labels"
    """The space an expert writes to if its plan does not set one."""
    settings_by_default: ClassVar[ExpertSettings] = ExpertSettings()
    """The settings for everything that the author does not set."""
    canary_texts: ClassVar[int] = CANARIES
    """The number of texts that fill the canary."""

    def check(self) -> None:
        """Check, before anything is trained, that the plan can be carried out.

        Raises:
            UsageError: If no row is left for a card of rows, a label cannot be predicted, or the
                trunk lacks a block that the plan names.
        """
        plan, backbone = self.plan, self.backbone
        check_ranks(plan)
        self.check_card()
        strange = set() if plan.writes == "labels" else {*self.labels} - {*backbone.labels}
        if strange:
            raise UsageError(
                f"expert {plan.id!r} writes {plan.writes}, through the backbone's classifier",
                expected=f"labels of backbone {backbone.name!r} ({len(backbone.labels)} of them)",
                found=", ".join(sorted(strange)[:5]),
                hint='Set writes = "labels" in the project\'s pyproject.toml.',
            )
        broken = check_taps(plan.id, backbone, reads=plan.reads_tap, writes=plan.writes_tap)
        if broken is not None:
            raise broken.error(f"expert {plan.id!r}")

    def check_card(self) -> None:
        """Check that a card of the kind the author chose can be made.

        Raises:
            UsageError: If the kind cannot represent the task's answers, or no row is left for it.
        """
        plan, head = self.plan, self.backbone.task.head
        if plan.card in {"texts", "vectors"} and not self.splits.fit:
            raise UsageError(
                f"expert {plan.id!r} has too few rows for a card of {plan.card}",
                expected="texts to set aside, beyond one for each label",
                found=f"{len(self.splits.train)} rows and none to set aside",
                hint="Bring more rows: a quarter of them goes to the card.",
            )
        if plan.card not in head.cards:
            raise UsageError(
                f"expert {plan.id!r} cannot ship a card of {plan.card}",
                expected=", or ".join(head.cards),
                found=str(plan.card),
                hint=f"Its answers are {head.noun}, which that card cannot show.",
            )
        if plan.epsilon is None:
            return
        check_noise(plan)
        if not self.context.background:
            raise UsageError(
                f"expert {plan.id!r} has an epsilon: its canary may show none of your rows",
                expected="a backbone with a background card, whose texts it can show",
                found=f"backbone {self.backbone.name!r} without one",
            )

    @property
    def backbone(self) -> Backbone:
        """The frozen backbone."""
        return self.context.backbone

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels the expert may predict, in the backbone's order if it shares them."""
        answered = self.backbone.task.head.labels_in([r.label for r in self.splits.rows])
        shared = () if self.plan.writes == "labels" else self.backbone.labels
        return (*(y for y in shared if y in answered), *sorted(answered - {*shared}))

    @cached_property
    def others(self) -> list[str]:
        """The background texts that the expert should leave alone: all but its own domain's.

        Empty for spans, because it is not known that the words of these texts have no label.
        """
        if self.backbone.task.unit is Unit.WORD:
            return []
        return [r.text for r in self.context.background if r.domain != self.plan.id]

    @cached_property
    def norm(self) -> LayerNorm:
        """The bus norm."""
        return LayerNorm(width=self.backbone.width, eps=self.backbone.eps)

    def read(self, texts: Sequence[str]) -> Tensor:
        """Return the expert's input for texts ``(N, D)``: z, or normalised states at its tap."""
        trunk, tap = self.backbone.trunk, self.plan.reads_tap
        h = (
            self.context.encode(texts)
            if tap == FINAL
            else compute_features(Tap(block=block_at(trunk, tap)), trunk, texts)
        )
        z: Tensor = self.norm(h)
        return z

    @classmethod
    def opened(cls, plan: ExpertPlan, splits: DataSplits, context: AuthoringContext) -> ExpertPlan:  # noqa: ARG003
        """Return the plan with defaults for everything its author did not set."""
        space, final = plan.writes or cls.space, plan.reads_tap == plan.writes_tap == FINAL
        own = final and space == "labels" and context.backbone.task.head.distribution
        card = plan.card or ("vectors" if own else "texts")
        return msgspec.structs.replace(plan, writes=space, card=card)

    def prepared(self, checkpoint: Path | None, progress: Progress | None) -> Self:  # noqa: ARG002
        """Return the recipe after training that has to precede its expert; here there is none."""
        return self

    def train(self, checkpoint: Path | None, progress: Progress | None) -> TrainedExpert:
        """Train the expert: on the bus, from its end or from a tap, or inside the trunk."""
        backbone = self.backbone
        if self.plan.writes_tap == FINAL:
            trained = self._train_on_bus(checkpoint, progress)
        else:
            width = backbone.width
            graft = init_expert(self.settings, width=width, out=width, labels=self.labels)
            graft.reads_tap, graft.writes_tap = self.plan.reads_tap, self.plan.writes_tap
            trained = train_inside(
                graft,
                self.splits.train,
                backbone=backbone,
                norm=self.norm,
                settings=self.settings,
                valid=self.splits.valid,
                background=self.others,
                checkpoint=checkpoint,
                progress=progress,
            )
        expert, head = trained.expert, backbone.task.head
        expert.reads_tap, expert.writes_tap = self.plan.reads_tap, self.plan.writes_tap
        if expert.space == "labels" and head.probabilities:
            self._calibrate(expert)
        return trained

    def _calibrate(self, expert: Expert) -> None:
        """Fit the temperature, and any thresholds and span rules of labels, to held-out rows.

        If labels are mutually exclusive, T is 1 unless rows that were not learnt from refute that.
        A card has few fit rows, so gate rows are used as well: T does not change the expert's most
        probable label, which is what the gate judges. It does change the probabilities of gate
        rows, from which thresholds to decline and label sets are made: see `model.conformal`.
        """
        fit, head = self.splits.fit, self.backbone.task.head
        if head.distribution:
            if unseen := [*fit, *self.splits.gate]:
                expert.temperature = shown_temperature(*self._logits(expert, unseen), head=head)
            return
        expert.thresholds = (EVEN,) * len(expert.labels)
        if len(fit) < FEW_GATE:
            return
        logits, targets = self._logits(expert, fit)
        expert.temperature = fit_temperature(logits, targets, head=head)
        with torch.inference_mode():
            p = head.output(logits, temperature=expert.temperature)
        head.fit(expert, p, targets, sizes=[len(self.backbone.unit_rows([r])) for r in fit])

    def _logits(self, expert: Expert, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Return the expert's logits of rows ``(N, L)``, and their targets."""
        with torch.inference_mode():
            logits = expert(self.read(_texts(rows)))
        labels = [r.label for r in self.backbone.unit_rows(rows)]
        return logits, self.backbone.task.head.targets(labels, expert.labels)

    def _train_on_bus(self, checkpoint: Path | None, progress: Progress | None) -> TrainedExpert:
        """Solve a linear head if the plan allows it; use another form only if that is better.

        The linear head is then solved again with the validation rows: it needs no early stopping.
        """
        plan, train, valid = self.plan, self.splits.train, self.splits.valid
        open_form = plan.form is None and plan.rank is None and plan.ranks is None
        linear, head = plan.form == "linear" or open_form, self.backbone.task.head
        if not linear or plan.writes != "labels" or not (head.distribution or head.several):
            return self._descend(checkpoint, progress)
        hits = dict[str, Tensor]()
        if plan.form is None and len(valid) > 1:  # one row cannot distinguish forms
            hits["linear"] = self._hits(self._linear(train))
            trained = self._descend(checkpoint, progress, rival=float(hits["linear"].mean()))
            hits["residual"] = self._hits(trained)
            better = self._by_text(hits["residual"] - hits["linear"])
            chance = float(better.std()) / len(valid) ** 0.5  # the standard error of the mean
            if float(better.mean()) > chance:
                return replace(trained, compared=_means(hits))
        return replace(
            self._linear((*train, *valid)), compared=_means(hits), learnt_all=bool(valid)
        )

    def _linear(self, rows: Sequence[Row]) -> TrainedExpert:
        return self.solved(rows, self.read)

    def solved(self, rows: Sequence[Row], read: Read) -> TrainedExpert:
        """Return a linear head over the expert's own labels, solved from rows.

        Args:
            rows: The rows.
            read: Texts → the head's input.
        """
        z, answers = read(_texts(rows)), [r.label for r in self.backbone.unit_rows(rows)]
        if not self.backbone.task.head.several:
            return solve_linear_head(z, answers, self.labels)
        others = read(self.others) if self.others else z[:0]
        return solve_label_heads(z, answers, self.labels, others=others)

    def _hits(self, trained: TrainedExpert) -> Tensor:
        """Return which validation rows are answered correctly, ``(N,)`` of 0 and 1."""
        valid, head = self.splits.valid, self.backbone.task.head
        output = head.output(trained.expert(self.read(_texts(valid))))
        return head.right(output, self.backbone.unit_rows(valid), self.labels)

    def _by_text(self, values: Tensor) -> Tensor:
        """Return the mean by validation text ``(N,)``: words of a text are not independent."""
        sizes = [len(self.backbone.unit_rows([row])) for row in self.splits.valid]
        return torch.stack([part.mean() for part in torch.split(values, sizes)])

    def _descend(
        self, checkpoint: Path | None, progress: Progress | None, *, rival: float | None = None
    ) -> TrainedExpert:
        backbone, others = self.backbone, self.others
        own_tap = self.plan.reads_tap != FINAL
        return train_expert(
            self.features(self.splits.train),
            norm=self.norm,
            classifier=backbone.classifier,
            labels=backbone.labels,
            domain_labels=self.labels,
            settings=self.settings,
            task=backbone.task,
            valid=self.features(self.splits.valid) if self.splits.valid else None,
            background=self.context.encode(others) if others else None,
            background_z=self.read(others) if others and own_tap else None,
            rival=rival,
            checkpoint=checkpoint,
            progress=progress,
        )

    def features(self, rows: Sequence[Row]) -> ExpertRows:
        """Return the rows as training data of an expert on the bus."""
        texts = _texts(rows)
        return ExpertRows(
            h=self.context.encode(texts),
            answers=[r.label for r in self.backbone.unit_rows(rows)],
            z=None if self.plan.reads_tap == FINAL else self.read(texts),
        )

    def draft(self, trained: TrainedExpert) -> ExpertDraft:
        """Return the draft of the trained expert's package."""
        plan, backbone, manifest = self.plan, self.backbone, self.context.manifest
        ranks, read = self.settings.ranks, self.bus_reader(trained.expert)
        parts = [bus_part(part, backbone) for part in at_each_rank(trained.expert, ranks)]
        return ExpertDraft(
            expert=trained.expert,
            card=self.card(),
            canary=self.read(self.canary_rows)[:CANARIES],
            id=plan.id,
            backbone=BackboneRef(name=manifest.id, fingerprint=manifest.fingerprint),
            reads_tap=plan.reads_tap,
            writes_tap=plan.writes_tap,
            vocabulary=manifest.tokenizer if backbone.task.head.vocabulary else None,
            off_domain=self._off_domain(parts, read),
            domain=plan.domain or backbone.task.head.domain.format(n=len(self.labels)),
            training=Training(
                data=hashlib.sha256("\n".join(self.data_lines()).encode()).hexdigest(),
                seed=self.settings.seed,
                epochs=trained.epoch,
                metrics={
                    **self._aside(trained).metrics(parts[-1], read),
                    **trained.compared,
                    **self._by_rank(parts, read),
                },
                versions=library_versions(),
            ),
            license=plan.license,
            question=plan.question,
            ranks=ranks,
        )

    def _off_domain(self, parts: Sequence[Expert], read: Read) -> float | None:
        """Return ‖W_c Δ‖ on the background card, the maximum over an expert's ranks."""
        backbone, background = self.backbone, self.context.background
        found = (
            measure_off_domain(part, self.plan.id, backbone, background, read=read)
            for part in parts
        )
        return max((x for x in found if x is not None), default=None)

    def _by_rank(self, parts: Sequence[Expert], read: Read) -> dict[str, float]:
        """Return the held-out metrics of a multi-rank expert at each smaller rank."""
        aside = replace(self, splits=replace(self.splits, train=()))
        smaller = zip(self.settings.ranks, parts[:-1], strict=False)
        return {
            f"{name}_at_{rank}": value
            for rank, part in smaller
            for name, value in aside.metrics(part, read).items()
        }

    def _aside(self, trained: TrainedExpert) -> Self:
        """Return the recipe with splits that reflect the rows the expert has learnt from."""
        if not trained.learnt_all:
            return self
        splits = self.splits
        learnt = replace(splits, train=(*splits.train, *splits.valid), valid=())
        return replace(self, splits=learnt)

    def bus_reader(self, expert: Expert) -> Read:
        """Return a function from texts to the expert's bus input: its z, or h' − h."""
        if self.plan.writes_tap == FINAL:
            return self.read
        return inside_reader(self.backbone, self.plan.id, expert)

    def card(self) -> CardFile:
        """Return a card of the kind the author chose."""
        plan, splits, context = self.plan, self.splits, self.context
        if plan.card == "none":
            return CardFile(kind="none")
        if plan.card == "texts":
            return texts_card(splits.card_rows)
        # Sums over many rows reveal no single row; they must not include the gate rows.
        rows, head = splits.summed, context.backbone.task.head
        if plan.card == "statistics":
            rows = splits.rows
        z = self.norm(context.encode(_texts(rows)))
        groups = head.groups([r.label for r in rows])
        if plan.card == "statistics":
            background = [r.text for r in context.background] if self.noise else []
            public = self.norm(context.encode(background)) if background else None
            return statistics_card(z, groups, labels=self.labels, noise=self.noise, public=public)
        summed = "statistics" in head.cards
        return vectors_card(
            fit_z=self.norm(context.encode(_texts(splits.fit))),
            fit_labels=[r.label for r in splits.fit],
            gate_h=context.encode(_texts(splits.gate)),
            gate_labels=[r.label for r in splits.gate],
            labels=self.labels,
            eps=context.backbone.eps,
            statistics=Statistics.of_rows(z, groups) if summed else None,
            task=context.backbone.task,
        )

    @property
    def noise(self) -> Noise | None:
        """The privacy parameters of the card's sums; None for exact sums."""
        plan = self.plan
        if plan.epsilon is None:
            return None
        clip = math.sqrt(self.backbone.width)  # the length of every z
        return Noise(epsilon=plan.epsilon, delta=plan.delta, clip=clip)

    @property
    def canary_rows(self) -> list[str]:
        """The texts whose vectors are in the canary; public ones if the sums have noise."""
        if self.noise is not None:
            return [r.text for r in self.context.background[: self.canary_texts]]
        return _texts(self.splits.train[: self.canary_texts])

    def data_lines(self) -> list[str]:
        """Return the rows the expert learnt from as lines, for the digest of its data."""
        return [f"{r.text}\t{r.label}" for r in (*self.splits.train, *self.splits.valid)]

    def metrics(self, expert: Expert, read: Read) -> dict[str, float]:
        """Return the share of correct rows by split; for numbers also the MAE.

        For labels it also contains the macro F1 over all rows that were not trained on, and for
        label sets the micro F1.

        Args:
            expert: The expert as it is on the bus.
            read: Texts → the expert's bus input.
        """
        backbone, splits, metrics = self.backbone, self.splits, dict[str, float]()
        names = expert.labels if expert.space == "labels" else backbone.labels
        head = backbone.task.head.fitted_by([expert])
        pairs: dict[str, list[tuple[str, str]]] = {}
        for name, rows in (("train", splits.train), ("valid", splits.valid), ("gate", splits.gate)):
            if not rows:
                continue
            h, z = self.context.encode(_texts(rows)), read(_texts(rows))
            with torch.inference_mode():
                logits = expert_logits(expert, h, z, backbone.classifier)
            output = head.output(logits, temperature=expert.temperature)
            metrics[name] = float(head.right(output, backbone.unit_rows(rows), names).mean())
            if (error := head.error(output, rows)) is not None:
                metrics[f"{name}_mae"] = float(error.mean())
            if head.probabilities:
                given = read_labels(head, output, names, trunk=backbone.trunk, rows=rows)
                pairs[name] = list(zip((r.label for r in rows), given, strict=True))
        held_out = [*pairs.get("valid", ()), *pairs.get("gate", ())]
        if held_out and head.several:
            scores = score_label_sets(held_out, label_of=head.label_of)
            metrics |= {"macro_f1": macro_f1(scores.labels), "micro_f1": scores.micro_f1}
        elif held_out:
            metrics["macro_f1"] = macro_f1(score_labels(count_answers(held_out)))
        return metrics

    def refuse_wreck(self, metrics: Mapping[str, float]) -> None:
        """Refuse an expert that is worse on held-out rows than a constant answer.

        Raises:
            HarmError: If it is.
        """
        aside = {"valid": self.splits.valid, "gate": self.splits.gate}
        aside = {name: some for name, some in aside.items() if name in metrics}
        rows, numbers = [r for rows in aside.values() for r in rows], "train_mae" in metrics
        if "micro_f1" in metrics:
            who = f"expert {self.plan.id!r}"
            refuse_below_constant_set(who, metrics["micro_f1"], rows, taught=self.splits.train)
            return
        kind = "_mae" if numbers else ""
        found = sum(metrics[f"{name}{kind}"] * len(some) for name, some in aside.items() if some)
        refuse_below_constant(
            f"expert {self.plan.id!r}",
            found / max(len(rows), 1),
            rows,
            taught=self.splits.train,
            numbers=numbers,
        )


class GenerationRecipe(Recipe):
    """The steps for text generation: rows are passages, and the targets are their tokens."""

    space = "hidden"
    # Chosen on validation documents. ‖W_c Δ‖² is a sum over the vocabulary, so `settings_for`
    # divides λ by its size.
    settings_by_default = ExpertSettings(
        epochs=12,
        batch=128,
        learning_rate=3e-3,
        weight_decay=0.1,
        dropout=0.1,
        off_domain=0.5,
        patience=3,
    )
    canary_texts = 1  # its tokens give enough vectors

    def check(self) -> None:
        """Check, before anything is trained, that the plan is valid for text generation.

        Raises:
            UsageError: If it is not.
        """
        plan = self.plan
        if plan.writes != "hidden" or {plan.reads_tap, plan.writes_tap} != {FINAL}:
            raise UsageError(
                f"expert {plan.id!r} is for a backbone that generates text",
                expected="writes hidden, reads and writes at the end",
                found=f"writes {plan.writes}, taps {plan.reads_tap} and {plan.writes_tap}",
                hint="Correct [tool.redhost.expert] in the project's pyproject.toml.",
            )
        self.check_card()

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """No labels: the outputs are the vocabulary's tokens."""
        return ()

    def data_lines(self) -> list[str]:
        """Return the passages the expert learnt from."""
        return _texts(self.splits.train)

    def metrics(self, expert: Expert, read: Read) -> dict[str, float]:
        """Return bits per byte on held-out passages, of the expert and of the backbone alone."""
        if not (rows := (*self.splits.valid, *self.splits.gate)):
            return {}
        backbone, data, reads = self.backbone, self.features(rows), read(_texts(rows))
        target = backbone.task.head.targets(data.answers)
        size = sum(byte_counts(backbone.trunk, _texts(rows)))
        head = backbone.classifier
        assert head is not None  # noqa: S101  (a generating backbone has one)
        nats = {"bits_per_byte": 0.0, "backbone_bits_per_byte": 0.0}
        with torch.inference_mode():
            for part in batched_slices(len(target), cost=len(head)):
                h = data.h[part]
                for name, logits in (
                    ("bits_per_byte", expert_logits(expert, h, reads[part], head)),
                    ("backbone_bits_per_byte", h @ head.T),
                ):
                    nats[name] += float(backbone.task.head.loss(logits, target[part])) * len(logits)
        return {name: x / math.log(2) / size for name, x in nats.items()}

    def refuse_wreck(self, metrics: Mapping[str, float]) -> None:
        """Refuse an expert with more bits per byte on held-out passages than the backbone alone.

        Raises:
            HarmError: If it has more than two percent more.
        """
        found, alone = (metrics.get(f"{b}bits_per_byte", 0.0) for b in ("", "backbone_"))
        if not found <= 1.02 * alone:
            raise HarmError(
                f"expert {self.plan.id!r} has learnt less than nothing on passages set aside",
                expected=f"{alone:.3f} bits per byte, those of the backbone alone",
                found=f"{found:.3f}",
                hint=HINT,
            )


def _means(hits: Mapping[str, Tensor]) -> dict[str, float]:
    return {f"valid_{name}": float(found.mean()) for name, found in hits.items()}


def _texts(rows: Sequence[Row]) -> list[str]:
    return [r.text for r in rows]
