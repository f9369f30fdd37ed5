"""Additive counts of words: what a package gives away of its author's texts, for the router.

    n_y: rows of label y        S_y = Σ u over these rows

Sums of several teams add up, and leaving is a subtraction: weights are multiples of a power of two,
so every sum is exact in float64. A place that fewer than `FEWEST` of the team's texts have is left
out: its count would say that one text has these two words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from scipy import sparse

from redhost.registry.errors import ContractError

from .places import UNIT, Ints, Words

__all__ = ["FEWEST", "Counts"]

FEWEST = 2
"""Fewest texts of a team that a place has to occur in."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """Counts of the rows of one team.

    Attributes:
        labels: Its labels, Y of them.
        rows: n_y, ``(Y,)``.
        places: The places that are counted, in ascending order, ``(P,)``.
        sums: S_y, ``(Y, P)``.
    """

    labels: tuple[str, ...]
    rows: npt.NDArray[np.float64]
    places: Ints
    sums: sparse.csr_array

    @classmethod
    def of_rows(
        cls, words: Words, answers: Sequence[str], *, labels: Sequence[str], fewest: int = FEWEST
    ) -> Self:
        """Count the rows of texts.

        Args:
            words: Their words, N texts.
            answers: The label of each.
            labels: All labels, in order; one without rows has zeros.
            fewest: Fewest texts that a place has to occur in.
        """
        every, texts = np.unique(words.places, return_counts=True)
        places = every[texts >= fewest]
        index = [labels.index(y) for y in answers]
        shape = len(labels), len(answers)
        of_label = sparse.csr_array((np.ones(shape[1]), (index, np.arange(shape[1]))), shape)
        return cls(
            labels=tuple(labels),
            rows=np.bincount(index, minlength=shape[0]).astype(np.float64),
            places=places,
            sums=(of_label @ words.among(places)).tocsr(),
        )

    def by(self, labels: Sequence[str]) -> Self:
        """Return the counts with the same labels in another order."""
        order = [self.labels.index(y) for y in labels]
        return replace(self, labels=tuple(labels), rows=self.rows[order], sums=self.sums[order])

    def plus(self, words: Words, answers: Sequence[str]) -> Self:
        """Return the counts with rows added, and with the places that enough of these have."""
        every, texts = np.unique(words.places, return_counts=True)
        places = np.union1d(self.places, every[texts >= FEWEST])
        return self._among(places)._changed(words, answers, by=1)

    def without(self, words: Words, answers: Sequence[str]) -> Self:
        """Return the counts without rows that are counted."""
        return self._changed(words, answers, by=-1)

    def _among(self, places: Ints) -> Self:
        """Return the counts at more places, in ascending order."""
        entries = self.sums.tocoo()
        at = entries.row, np.searchsorted(places, self.places)[entries.col]
        sums = sparse.csr_array((entries.data, at), (len(self.labels), len(places)))
        return replace(self, places=places, sums=sums)

    def _changed(self, words: Words, answers: Sequence[str], *, by: int) -> Self:
        """Return the counts with rows added or removed at the places that are counted."""
        index = [self.labels.index(y) for y in answers]
        shape = len(self.labels), len(answers)
        of_label = sparse.csr_array((np.full(shape[1], by), (index, np.arange(shape[1]))), shape)
        sums = (self.sums + of_label @ words.among(self.places)).tocsr()
        sums.eliminate_zeros()
        rows = self.rows + by * np.bincount(index, minlength=shape[0])
        return replace(self, rows=rows, sums=sums)

    def save(self) -> bytes:
        """Return a file of integers, label by label; sums are in units of 1 / `UNIT`."""
        by_label = self.sums.sorted_indices()
        tensors = {
            "rows": self.rows,
            "places": self.places,
            "sizes": np.diff(by_label.indptr),
            "index": by_label.indices,
            "sums": by_label.data * UNIT,
        }
        return safetensors.numpy.save({n: t.astype(np.int64) for n, t in tensors.items()})

    @classmethod
    def load(cls, data: bytes, *, labels: Sequence[str], other: str | None = None) -> Self:
        """Read a file of counts.

        Args:
            data: The file.
            labels: The labels.
            other: Under what rows without a label are counted, after all labels, if there are any.

        Raises:
            ContractError: If they are not counts of rows of these labels.
        """
        try:
            t = safetensors.numpy.load(data)
            if other is not None and len(t["sizes"]) == len(labels) + 1:
                labels = (*labels, other)
            starts = np.concatenate([[0], np.cumsum(t["sizes"])])
            entries = t["sums"].astype(np.float64) / UNIT, t["index"], starts
            sums = sparse.csr_array(entries, (len(labels), len(t["places"])))
            sums.check_format()
            rows = t["rows"].astype(np.float64)
            counts = cls(labels=tuple(labels), rows=rows, places=t["places"], sums=sums)
        except (KeyError, ValueError) as e:
            raise ContractError("counts of words", expected="counts by label", found=str(e)) from e
        counts.check()
        return counts

    def check(self) -> None:
        """Check that these may be counts of rows.

        Raises:
            ContractError: If there is no number of rows for a label, places do not ascend, or a sum
                is none of so many weights.
        """
        ascends = bool((np.diff(self.places) > 0).all()) and bool((self.places >= 0).all())
        by_label = self.rows.shape == (len(self.labels),) and bool((self.rows >= 0).all())
        most = np.repeat(self.rows, np.diff(self.sums.indptr)) if by_label else 0
        if not (
            ascends and by_label and bool(((self.sums.data > 0) & (self.sums.data <= most)).all())
        ):
            raise ContractError(
                "counts of words",
                expected="sums of weights of as many rows as it says, at ascending places",
                found="other numbers",
                hint="Ask its author for a new build.",
            )

    @property
    def totals(self) -> npt.NDArray[np.float64]:
        """Σ_v S_yv, ``(Y,)``."""
        return np.asarray(self.sums.sum(axis=1))
