"""From an author's labelled rows to a package of the form ``words``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import safetensors.torch
import torch
from redhost_author.training.expert import TrainedExpert
from redhost_author.training.packaging import ExpertDraft, FormDraft
from redhost_author.training.recipe import Recipe
from torch import Tensor

from redhost.core.bus.label_set_head import SigmoidHead
from redhost.core.bus.task import SoftmaxHead
from redhost.core.label_sets import NONE
from redhost.core.types import Progress, Row
from redhost.registry.errors import UsageError
from redhost.registry.package.manifest import FileRef
from redhost.registry.package.safetensors_check import sha256_hex

from .counts import FEWEST, Counts
from .expert import CARD, COUNTS, FORM, WEIGHTS, WORDS, WordsExpert, probe_text
from .marks import keys_of, marked
from .places import MOST, Channel, Ints, Words, last_of, states_of
from .ridge import EXACT, idf_of, normalised, solve

__all__ = ["WordsRecipe"]


@dataclass(frozen=True, kw_only=True, eq=False)
class WordsRecipe(Recipe):
    """The steps from labelled texts to an expert that reads their words."""

    def check(self) -> None:
        """Check that the answers are labels of texts, and the expert's own.

        Raises:
            UsageError: If they are not.
        """
        super().check()
        task, plan = self.backbone.task, self.plan
        answered = isinstance(task.head, SoftmaxHead | SigmoidHead) and task.unit.whole
        if not answered or plan.writes != "labels":
            raise UsageError(
                f"expert {plan.id!r} of the form 'words'",
                expected="labels of its own for whole texts",
                found=f"writes {plan.writes}, on a backbone that {task.unit.does}",
                hint="Train it in another form.",
            )
        if plan.epsilon is not None:
            raise UsageError(
                f"expert {plan.id!r} has an epsilon: counts of words have no noise",
                expected="another form, or no epsilon",
                found="the form 'words'",
            )

    def words(self, rows: Sequence[Row]) -> Words:
        """Return the words of rows."""
        return self._words_of([r.text for r in rows])

    def _segment(self, texts: Sequence[str]) -> Tensor:
        return self._words_of(texts).segment()

    def _words_of(self, texts: Sequence[str]) -> Words:
        read = self._read
        if unread := [*dict.fromkeys(t for t in texts if t not in read)]:
            words = Channel(backbone=self.backbone).words(unread)
            read.update(zip(unread, words.each(), strict=True))
        return Words.joined([read[t] for t in texts])

    @cached_property
    def _read(self) -> dict[str, Words]:
        """The words of texts that were read: tokenizing a long one takes as long as encoding it."""
        return {}

    def read(self, texts: Sequence[str]) -> Tensor:
        """Return z with the words ``(N, D + WIDTH)``; rows that are left out have their marks."""
        words = self._segment(texts)
        marks = self._marks
        known = [n for n, text in enumerate(texts) if text in marks]
        if known:
            words[known] = torch.stack([marks[texts[n]] for n in known])
        return torch.cat([super().read(texts), words], dim=1)

    @cached_property
    def _shown(self) -> tuple[Row, ...]:
        """The rows of the card, in order."""
        return (*self.splits.fit, *self.splits.gate)

    @cached_property
    def _marked(self) -> Tensor:
        """The words of the card's rows with their marks, ``(N, WIDTH)``."""
        words = self._segment([r.text for r in self._shown])[:, : 2 * MOST]
        return marked(words, expert=self.plan.id)

    @cached_property
    def _learnt(self) -> tuple[Row, ...]:
        """The rows of the card that the expert learns from: those with a mark, or none.

        None of a card of texts, whose words hosts compute themselves, nor if there are too many
        rows to leave one out exactly; those of the card are few then.
        """
        learnt = (*self.splits.train, *self.splits.valid)
        if self.plan.card != "vectors" or len(learnt) + len(self._shown) > EXACT:
            return ()
        keys = keys_of(self._marked).tolist() if self._shown else []
        seen, summed = {r.text for r in learnt}, {*self._groups(self.splits.summed)}
        rows = [r for r, key in zip(self._shown, keys, strict=True) if key]
        # Hosts add gate rows to the card's sums, of whose labels sets may be the only ones.
        added = {*self._groups(rows)} <= summed
        return tuple(rows) if added and not any(r.text in seen for r in rows) else ()

    @cached_property
    def _marks(self) -> dict[str, Tensor]:
        """The words with marks of the rows that are left out, by text."""
        learnt = {r.text for r in self._learnt}
        shown = zip(self._shown, self._marked, strict=True) if learnt else ()
        return {r.text: words for r, words in shown if r.text in learnt}

    @cached_property
    def counts(self) -> Counts:
        """The counts of all rows that the card's sums may cover, and of those that are left out."""
        splits, gate = self.splits, {r.text for r in self.splits.gate}
        more = [r for r in self._learnt if r.text in gate]
        rows = splits.rows if self.plan.card == "statistics" else (*splits.summed, *more)
        groups = self._groups(rows)
        # A row without a label is counted as well; a label may have that name.
        labels = (*self.labels, *({NONE} & {*groups}).difference(self.labels))
        return Counts.of_rows(self.words(rows), groups, labels=labels)

    def _groups(self, rows: Sequence[Row]) -> tuple[str, ...]:
        """Return the label under which each row is counted."""
        return self.backbone.task.head.groups([r.label for r in rows])

    def _truth(self, rows: Sequence[Row]) -> Ints:
        """Return which labels rows have, ``(n, L)`` of 0 and 1."""
        head = self.backbone.task.head
        if not head.several:
            return np.eye(len(self.labels), dtype=np.int64)[
                [self.labels.index(r.label) for r in rows]
            ]
        return head.targets([r.label for r in rows], self.labels).numpy()

    def _train_on_bus(self, checkpoint: Path | None, progress: Progress | None) -> TrainedExpert:  # noqa: ARG002
        """Solve W and Wᵤ on all rows whose answers can be left out, or that no card shows."""
        rows = (*self.splits.train, *self.splits.valid, *self._learnt)
        words = self.words(rows)
        found, texts = np.unique(words.places, return_counts=True)
        places = found[texts >= FEWEST]
        u = words.among(places)
        idf = idf_of(u)
        solved = solve(
            normalised(u, idf),
            super().read([r.text for r in rows])[:, : states_of(self.backbone)].double().numpy(),
            self._truth(rows),
            last=last_of(self.backbone),
            sets=self.backbone.task.head.several,
        )
        weights = {"W": torch.from_numpy(solved.states), "b": torch.from_numpy(solved.bias)}
        count = len(self._learnt)
        expert = WordsExpert(
            weights=weights,
            words={
                "places": torch.from_numpy(places),
                "idf": torch.from_numpy(idf),
                "Wu": torch.from_numpy(solved.words).half(),
                "probe": self._segment([probe_text(self.labels)])[0],
            },
            counts=self.counts,
            width=self.backbone.width,
            labels=self.labels,
            marks=torch.stack([*self._marks.values()]) if count else None,
            left_out=torch.from_numpy(solved.left_out[len(rows) - count :]) if count else None,
        )
        expert = expert.requires_grad_(False).eval()
        return TrainedExpert(
            expert=expert, epoch=0, loss=solved.loss, learnt_all=bool(self.splits.valid)
        )

    def draft(self, trained: TrainedExpert) -> ExpertDraft:
        """Return the draft of the package, with the counts and the words of the card's rows."""
        draft = super().draft(trained)
        # The canary checks W and b: its vectors have no words.
        canary = draft.canary[:, : self.backbone.width].clone()
        return replace(draft, canary=canary, form=self._form(cast("WordsExpert", trained.expert)))

    def _form(self, expert: WordsExpert) -> FormDraft:
        weights = safetensors.torch.save({"W": expert.W.detach(), "b": expert.b.detach()})
        files = {WORDS: expert.save_words(), COUNTS: self.counts.save()}
        if self.plan.card == "vectors":
            words, fit = self._marked[:, : 2 * MOST], len(self.splits.fit)
            rows = {"fit": words[:fit].clone(), "gate": words[fit:].clone()}
            if self._learnt:
                rows["left_out"] = expert.left_out_of(self._marked)
            files[CARD] = safetensors.torch.save(rows)
        fields = {
            "form": FORM,
            "rank": 0,
            "activation": "identity",
            "weights": FileRef(file=WEIGHTS, sha256=sha256_hex(weights)),
            "tensors": {"W": tuple(expert.W.shape), "b": tuple(expert.b.shape)},
            "files": {name: sha256_hex(data) for name, data in files.items()},
        }
        return FormDraft(files={WEIGHTS: weights, **files}, fields=fields)
