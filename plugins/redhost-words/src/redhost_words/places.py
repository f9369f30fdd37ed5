"""The words of a text: a sparse vector u over the tokens and the pairs of adjacent tokens.

    u_v = (1 + ln n_v) / ‖·‖₂      n_v: how often token or pair v occurs in the whole text

A token's place is its id, a pair's one of `PAIRS` places after the vocabulary, by its hash (feature
hashing: Weinberger et al. 2009). There is no inverse document frequency, so that the sums of teams
add up. Weights are multiples of 1 / `UNIT`: their sums are exact, in whatever order they are added.

As a segment of h̃ a text is a row of `MOST` places, as many weights, and a mark (`marks`). Places
are counted from 1 in it, so that rows filled up with zeros have no words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from scipy import sparse
from torch import Tensor

from redhost.core.backbones.backbone import Backbone
from redhost.core.bus.layout import FeatureSegment

from .marks import MARK
from .static import weights_of

__all__ = [
    "ENDLESS",
    "KEY",
    "MOST",
    "PAIRS",
    "UNIT",
    "WIDTH",
    "Channel",
    "Words",
    "channel",
    "in_order",
    "last_of",
    "states_of",
    "vocabulary_of",
]

PAIRS = 2**18
"""Places of pairs."""

UNIT = 2**12
"""Weights are multiples of 1 / UNIT; the smallest of a full row is about UNIT / 32."""

MOST = 1024
"""Most places of a text, the first ones in it: one newsgroup post in ten has more, and nothing is
lost by leaving those out (docs/lab-notes.md)."""

ENDLESS = 10**9
"""A limit on tokens that no text reaches."""

MULTIPLIERS = (0x9E3779B1, 0x85EBCA6B)
"""Odd 32-bit numbers: a pair's place is the upper bits of a sum of products (multiply-shift
hashing: Dietzfelbinger et al. 1997)."""

WIDTH = 2 * MOST + MARK
"""Numbers of the segment."""

KEY = f"words {WIDTH} {PAIRS} {UNIT}"
"""The key of the segment."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Words:
    """The words of N texts, one after the other.

    Attributes:
        sizes: The number of places of each text, ``(N,)``.
        places: The places of all texts, in ascending order within a text, ``(M,)``.
        weights: u at these places, ``(M,)`` in float64.
    """

    sizes: Ints
    places: Ints
    weights: npt.NDArray[np.float64]

    @classmethod
    def of_tokens(cls, ids: Sequence[Sequence[int]], *, vocabulary: int) -> Self:
        """Return the words of texts, given the token ids of each."""
        each = [_of_text(np.asarray(row, dtype=np.int64), vocabulary) for row in ids]
        return cls(
            sizes=np.array([len(places) for places, _ in each], dtype=np.int64),
            places=np.concatenate([np.zeros(0, np.int64), *(places for places, _ in each)]),
            weights=np.concatenate([np.zeros(0), *(weights for _, weights in each)]),
        )

    @classmethod
    def of_segment(cls, rows: Tensor) -> Self:
        """Return the words in rows of a segment ``(N, WIDTH)``; none in rows of no numbers."""
        numbers = rows[:, : 2 * MOST].detach().cpu().double().numpy()
        places, weights = np.split(numbers, 2, axis=1)
        given = places > 0
        return cls(
            sizes=given.sum(1), places=places[given].astype(np.int64) - 1, weights=weights[given]
        )

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the words of several parts, one after the other."""
        return cls(
            sizes=np.concatenate([np.zeros(0, np.int64), *(p.sizes for p in parts)]),
            places=np.concatenate([np.zeros(0, np.int64), *(p.places for p in parts)]),
            weights=np.concatenate([np.zeros(0), *(p.weights for p in parts)]),
        )

    def each(self) -> Iterator[Self]:
        """Yield the words of each text, of which none keeps the others in memory."""
        ends = np.cumsum(self.sizes)
        for start, end in zip(ends - self.sizes, ends, strict=True):
            yield replace(
                self,
                sizes=np.array([end - start]),
                places=self.places[start:end].copy(),
                weights=self.weights[start:end].copy(),
            )

    def segment(self) -> Tensor:
        """Return rows of a segment ``(N, WIDTH)``, without marks."""
        rows = np.zeros((len(self.sizes), 2, MOST), dtype=np.float32)
        text = np.repeat(np.arange(len(self.sizes)), self.sizes)
        start = np.repeat(np.cumsum(self.sizes) - self.sizes, self.sizes)
        index = np.arange(len(self.places)) - start
        rows[text, 0, index], rows[text, 1, index] = self.places + 1, self.weights
        return torch.from_numpy(np.pad(rows.reshape(len(rows), 2 * MOST), ((0, 0), (0, MARK))))

    def among(self, places: Ints) -> sparse.csr_array:
        """Return u ``(N, P)`` at some places, which are in ascending order."""
        column = np.searchsorted(places, self.places)
        known = column < len(places)
        known[known] = places[column[known]] == self.places[known]
        text = np.repeat(np.arange(len(self.sizes)), self.sizes)
        index = (text[known], column[known])
        return sparse.csr_array((self.weights[known], index), (len(self.sizes), len(places)))


def in_order(ids: Ints, vocabulary: int) -> Ints:
    """Return the places of a text as they occur in it: a token, then the pair that it begins."""
    hashed = (ids[:-1] * MULTIPLIERS[0] + ids[1:] * MULTIPLIERS[1]) % 2**32
    pairs = vocabulary + hashed * PAIRS // 2**32
    return np.concatenate([np.stack([ids[:-1], pairs], 1).ravel(), ids[-1:]])


def _of_text(ids: Ints, vocabulary: int) -> tuple[Ints, npt.NDArray[np.float64]]:
    """Return the places of a text in ascending order, and u there."""
    spoken = in_order(ids, vocabulary)
    places, first, counts = np.unique(spoken, return_index=True, return_counts=True)
    # Texts are cut after so many places.
    if len(places) > MOST:
        early = np.sort(np.argsort(first)[:MOST])
        places, counts = places[early], counts[early]
    raw = 1 + np.log(counts)
    length = max(float(np.sqrt(np.square(raw).sum())), 1.0)
    return places, np.rint(raw / length * UNIT) / UNIT


@dataclass(frozen=True, kw_only=True, eq=False)
class Channel:
    """From texts, or from the token ids of one, to rows of the segment.

    Attributes:
        backbone: The backbone whose tokenizer finds the words.
    """

    backbone: Backbone

    def __call__(self, texts: Sequence[str]) -> Tensor:
        """Return the words of texts ``(N, WIDTH)``."""
        return self.words(texts).segment()

    def words(self, texts: Sequence[str]) -> Words:
        """Return the words of texts."""
        trunk = self.backbone.trunk
        limit = {"truncation": True, "max_length": ENDLESS}
        # With a limit that no text reaches: without one, transformers warns about long texts.
        ids = [trunk.token_ids(text, **limit) for text in texts]
        return Words.of_tokens(ids, vocabulary=vocabulary_of(self.backbone))

    def of_tokens(self, ids: Tensor) -> Tensor:
        """Return the words ``(WIDTH,)`` of all a text's ids ``(N,)``, as a graph can compute them.

        Places are in the text's order.
        """
        vocabulary = vocabulary_of(self.backbone)
        hashed = (ids[:-1] * MULTIPLIERS[0] + ids[1:] * MULTIPLIERS[1]) % 2**32
        pairs = vocabulary + hashed * PAIRS // 2**32
        spoken = torch.cat([torch.stack([ids[:-1], pairs], 1).flatten(), ids[-1:]])
        places, weights = weights_of(spoken, places=vocabulary + PAIRS, most=MOST, unit=UNIT)
        return torch.cat([places, weights, torch.zeros(MARK)])


def channel(backbone: Backbone) -> FeatureSegment:
    """Return the segment of h̃ with the words of each text, which all its readers share."""
    return FeatureSegment(
        key=KEY, width=WIDTH, normalised=False, compute=Channel(backbone=backbone)
    )


def vocabulary_of(backbone: Backbone) -> int:
    """Return the number of token ids of a backbone's encoder."""
    return int(backbone.trunk.model.config.vocab_size)


def states_of(backbone: Backbone) -> int:
    """Return S, the first dimensions of z that are states; hashed tokens come after them."""
    features = backbone.trunk.features
    return backbone.width - (features.tokens if features else 0)


def last_of(backbone: Backbone) -> int:
    """Return how many of the states are of the encoder's last layer; they come last."""
    features = backbone.trunk.features
    return states_of(backbone) // (len(features.layers) if features else 1)
