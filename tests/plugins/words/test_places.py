"""The words of a text: weights by hand, exact sums, and rows of a segment."""

from __future__ import annotations

import math
import random

import numpy as np
import torch
from redhost_words.places import MOST, PAIRS, UNIT, WIDTH, Words

VOCABULARY = 50


def words(*ids: list[int]) -> Words:
    return Words.of_tokens(ids, vocabulary=VOCABULARY)


def test_weights_are_one_plus_the_logarithm_of_counts_over_their_length() -> None:
    found = words([7, 3, 7])  # tokens 3 and 7, the latter twice, and the pairs 7 3 and 3 7
    length = math.sqrt((1 + math.log(2)) ** 2 + 3)
    assert found.places[:2].tolist() == [3, 7] and found.sizes.tolist() == [4]
    assert all(VOCABULARY <= p < VOCABULARY + PAIRS for p in found.places[2:])
    expected = [1 / length, (1 + math.log(2)) / length, 1 / length, 1 / length]
    np.testing.assert_allclose(found.weights, expected, atol=0.5 / UNIT)
    assert (found.weights * UNIT == np.rint(found.weights * UNIT)).all()


def test_a_pair_is_ordered_and_texts_of_one_token_or_none_have_no_pair() -> None:
    assert words([1, 2]).places[-1] != words([2, 1]).places[-1]
    assert words([5]).places.tolist() == [5] and words([5]).weights.tolist() == [1]
    assert words([]).sizes.tolist() == [0]


def test_pairs_are_spread_over_all_places() -> None:
    chance = random.Random(0)
    ids = [[chance.randrange(VOCABULARY), chance.randrange(VOCABULARY)] for _ in range(2000)]
    found = {tuple(i): int(words(i).places[-1]) for i in ids}
    assert len({*found.values()}) > 0.99 * len(found)
    halves = [place < VOCABULARY + PAIRS // 2 for place in found.values()]
    assert 0.4 < sum(halves) / len(halves) < 0.6


def test_a_row_of_a_segment_has_the_words_and_a_row_of_zeros_none() -> None:
    found = words([7, 3, 7], [4])
    rows = torch.cat([found.segment(), torch.zeros(1, WIDTH)])
    assert rows.shape == (3, WIDTH) and rows.dtype == torch.float32
    again = Words.of_segment(rows)
    assert again.sizes.tolist() == [4, 1, 0]
    np.testing.assert_array_equal(again.places, found.places)
    np.testing.assert_array_equal(again.weights, found.weights)


def test_of_a_long_text_the_first_places_count() -> None:
    ids = list(range(40, 40 + MOST))  # MOST tokens and as many pairs, less one
    long = Words.of_tokens([ids], vocabulary=2000)
    assert long.sizes.tolist() == [MOST]
    tokens = long.places[long.places < 2000]
    assert tokens.tolist() == ids[: MOST // 2]


def test_a_text_among_chosen_places_has_its_weights_there_alone() -> None:
    found = words([7, 3, 7], [4], [])
    dense = found.among(np.array([3, 5, 7])).toarray()
    assert dense.shape == (3, 3) and not dense[1:].any()
    np.testing.assert_array_equal(dense[0], [found.weights[0], 0, found.weights[1]])
