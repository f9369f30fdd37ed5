"""Counts are compared with the rows that a card shows."""

from __future__ import annotations

import numpy as np
import pytest
from redhost_words.likeness import MOST_ALONE, MOST_UNLIKE, loneliness, unlikeness
from scipy import sparse


def rows_of(seed: int, count: int, *, topic: int = 9) -> tuple[sparse.csr_array, np.ndarray]:
    """Return rows of 400 places, which two labels have unequally often, and their labels."""
    chance = np.random.default_rng(seed)
    target = np.arange(count) % 2
    often = 0.3 * np.random.default_rng(topic).random((2, 400)) ** 4
    words = (chance.random((count, 400)) < often[target]).astype(np.float64)
    words /= np.maximum(np.linalg.norm(words, axis=1, keepdims=True), 1)
    return sparse.csr_array(words), target


def counted(words: sparse.csr_array, target: np.ndarray) -> tuple[sparse.csr_array, np.ndarray]:
    of_label = sparse.csr_array(np.eye(2)[target].T)
    return (of_label @ words).tocsr(), np.bincount(target).astype(np.float64)


@pytest.mark.parametrize(("count", "shown"), [(40, 10), (400, 100), (2000, 320)])
def test_honest_counts_are_off_by_chance_alone(count, shown) -> None:
    found = [
        unlikeness(*counted(words, target), words[:shown], target[:shown])
        for words, target in (rows_of(seed, count) for seed in range(20))
    ]
    assert abs(np.median(found)) < 1
    assert max(found) < MOST_UNLIKE


@pytest.mark.parametrize("share", [0.5, 0.25])
def test_words_of_others_among_the_counts_are_noticed(share) -> None:
    words, target = rows_of(1, 1000)
    sums, rows = counted(words, target)
    others, _ = counted(rows_of(2, 1000, topic=8)[0], target)
    mixed = ((1 - share) * sums + share * others).tocsr()
    assert unlikeness(sums, rows, words[:250], target[:250]) < MOST_UNLIKE
    assert unlikeness(mixed, rows, words[:250], target[:250]) > MOST_UNLIKE


def test_labels_that_change_places_are_noticed_though_their_sum_is_the_same() -> None:
    words, target = rows_of(1, 1000)
    sums, rows = counted(words, target)
    swapped = sums[[1, 0]].tocsr()
    assert unlikeness(swapped, rows, words[:250], target[:250]) > MOST_UNLIKE


def test_it_is_what_the_formula_says() -> None:
    words = np.array([[1.0, 0], [0, 1], [1, 1], [1, 0]])
    sums, n, count = np.array([16.0, 1.0]), 4, 9
    w = sums**-0.5
    d = w @ (sums / count - words.mean(axis=0)) ** 2
    centred = (words - words.mean(axis=0)) * np.sqrt(w)
    mean = (1 - n / count) / n * np.square(centred).sum() / (n - 1)
    products = [
        (a @ b) ** 2 for i, a in enumerate(centred) for j, b in enumerate(centred) if i != j
    ]
    variance = 2 * ((1 - n / count) / n) ** 2 * np.mean(products)
    found = unlikeness(
        sparse.csr_array(sums[None]), np.array([9.0]), sparse.csr_array(words), np.zeros(4, int)
    )
    assert found == pytest.approx((d - mean) / np.sqrt(variance))


@pytest.mark.parametrize("count", [48, 300, 3000])
def test_rows_that_are_counted_several_times_are_noticed_by_words_of_one_text(count) -> None:
    chance = np.random.default_rng(count)
    places = np.minimum(chance.zipf(1.3, (count, 40)), 100_000)
    starts = 40 * np.arange(count + 1)
    words = sparse.csr_array((np.full(places.size, 0.16), places.ravel(), starts))
    words.sum_duplicates()
    texts = np.bincount(words.indices)
    sums, shown = words[:, texts > 1].sum(axis=0)[None], words[: max(count // 8, 12)]
    alone = int((texts[shown.indices] == 1).sum())
    for times in (1, 4, 20):
        found = loneliness(sparse.csr_array(times * sums), shown[:, texts > 1].tocsr(), alone=alone)
        assert (found > MOST_ALONE) == (times > 1)


def test_rows_without_a_word_of_their_own_say_nothing_of_how_often_they_are_counted() -> None:
    words = sparse.csr_array(np.eye(4))
    assert loneliness(20 * words, words, alone=0) == 0
    assert loneliness(words, words, alone=10) == 2  # four are rare


def test_one_row_or_all_rows_say_nothing() -> None:
    words, target = rows_of(1, 10)
    sums, rows = counted(words, target)
    assert unlikeness(sums, rows, words, target) == 0
    assert unlikeness(sums, rows, words[:1], target[:1]) == 0
