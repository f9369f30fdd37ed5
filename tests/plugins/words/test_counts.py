"""Counts: sums by label that are exact in any order, and files that are refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
import safetensors.numpy
from redhost_words.counts import Counts
from redhost_words.places import Words

from redhost.errors import ContractError

LABELS = ("a", "b")


def rows_of(seed: int, count: int) -> tuple[list[list[int]], list[str]]:
    chance = random.Random(seed)
    return (
        [[chance.randrange(30) for _ in range(9)] for _ in range(count)],
        [chance.choice(LABELS) for _ in range(count)],
    )


def counted(ids: list[list[int]], answers: list[str], *, fewest: int = 1) -> Counts:
    words = Words.of_tokens(ids, vocabulary=30)
    return Counts.of_rows(words, answers, labels=LABELS, fewest=fewest)


def dense(counts: Counts) -> dict[int, list[float]]:
    return dict(zip(counts.places.tolist(), counts.sums.toarray().T.tolist(), strict=True))


def test_sums_are_those_of_the_rows_by_label() -> None:
    counts = counted([[1, 2], [1], [2]], ["a", "a", "b"])
    third = Words.of_tokens([[1, 2]], vocabulary=30).weights[0]
    sums = dense(counts)
    assert sums[1] == [third + 1, 0] and sums[2] == [third, 1] and len(sums) == 3
    assert counts.rows.tolist() == [2, 1]
    np.testing.assert_array_equal(counts.totals, [3 * third + 1, 1])


@pytest.mark.parametrize("seed", range(3))
def test_sums_have_the_same_bits_however_rows_are_dealt_and_ordered(seed) -> None:
    ids, answers = rows_of(seed, 200)
    whole = dense(counted(ids, answers))
    order = random.Random(seed).sample(range(200), 200)
    parts = [order[:30], order[30:31], order[31:]]
    total: dict[int, np.ndarray] = {}
    for part in parts:
        for place, sums in dense(
            counted([ids[n] for n in part], [answers[n] for n in part])
        ).items():
            total[place] = total.get(place, np.zeros(2)) + sums
    assert {p: s.tolist() for p, s in total.items()} == whole
    gone = dense(counted([ids[n] for n in parts[2]], [answers[n] for n in parts[2]]))
    left = {p: (s - gone.get(p, np.zeros(2))).tolist() for p, s in total.items()}
    rest = dense(counted([ids[n] for n in order[:31]], [answers[n] for n in order[:31]]))
    assert {p: s for p, s in left.items() if any(s)} == rest


def test_places_that_one_text_alone_has_are_left_out() -> None:
    counts = counted([[1, 2], [1, 3], [1]], ["a", "b", "a"], fewest=2)
    assert counts.places.tolist() == [1] and counts.rows.tolist() == [2, 1]


def test_a_file_gives_the_counts_back() -> None:
    counts = counted(*rows_of(0, 50))
    again = Counts.load(counts.save(), labels=LABELS)
    assert dense(again) == dense(counts) and again.rows.tolist() == counts.rows.tolist()


def changed(**fields: object) -> bytes:
    tensors = safetensors.numpy.load(counted(*rows_of(0, 50)).save())
    for name, change in fields.items():
        assert callable(change)
        tensors[name] = change(tensors[name]).astype(np.int64)
    return safetensors.numpy.save(tensors)


@pytest.mark.parametrize(
    "fields",
    [
        {"sums": lambda x: -x},
        {"sums": lambda x: x * 1000},
        {"rows": lambda x: -x},
        {"rows": lambda x: x[:1]},
        {"places": lambda x: x[::-1].copy()},
        {"places": lambda x: x - 100},
        {"index": lambda x: x + 1000},
        {"sizes": lambda x: x + 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_what_cannot_be_counts_is_refused(fields) -> None:
    with pytest.raises(ContractError):
        Counts.load(changed(**fields), labels=LABELS)


def test_a_file_without_a_tensor_or_for_other_labels_is_refused() -> None:
    data = counted(*rows_of(0, 50)).save()
    tensors = safetensors.numpy.load(data)
    del tensors["index"]
    for bad, labels in ((safetensors.numpy.save(tensors), LABELS), (data, (*LABELS, "c"))):
        with pytest.raises(ContractError):
            Counts.load(bad, labels=labels)
