"""Authors' rows set aside: each in one split."""

from __future__ import annotations

import pytest
from redhost_author.training.data import split_rows

import redhost
from redhost.core.types import write_rows
from redhost.registry.errors import UsageError
from redhost.registry.package.payload import MAX_CARD

# -- rows set aside --------------------------------------------------------------------------------

ROWS = [
    redhost.Row(text=f"{'red' if n % 2 else 'blue'} {n}", label="xy"[n % 2]) for n in range(240)
]


def test_rows_are_in_one_part_each_and_the_split_is_stable() -> None:
    splits = split_rows(ROWS)
    texts = [{r.text for r in p} for p in (splits.train, splits.valid, splits.fit, splits.gate)]
    assert sum(len(t) for t in texts) == 240 == len(set().union(*texts))
    assert (len(splits.fit), len(splits.gate)) == (30, 30)
    assert split_rows(ROWS[::-1]) == splits


def test_equal_texts_are_never_in_two_parts() -> None:
    splits = split_rows(ROWS + ROWS)
    texts = [{r.text for r in p} for p in (splits.train, splits.valid, splits.fit, splits.gate)]
    assert sum(len(t) for t in texts) == len(set().union(*texts))


def test_a_card_has_512_rows_where_the_data_allow() -> None:
    rows = [redhost.Row(text=f"t {n}", label="xy"[n % 2]) for n in range(2100)]
    splits = split_rows(rows)
    assert (len(splits.fit), len(splits.gate)) == (256, 256)


def test_a_card_has_as_many_long_rows_as_a_package_may_bring() -> None:
    rows = [redhost.Row(text=f"{n} " + "\n" * 24_990, label="xy"[n % 2]) for n in range(400)]
    splits = split_rows(rows)
    assert 80 <= len(splits.card_rows) < 100 == 400 // 4
    assert MAX_CARD / 2 - 200_000 < len(write_rows(splits.card_rows)) < MAX_CARD
    assert len(splits.rows) == 400


def test_every_label_keeps_a_row_to_train_on() -> None:
    rows = [*ROWS, redhost.Row(text="rare", label="z")]
    assert {r.label for r in split_rows(rows).train} == {"x", "y", "z"}


def test_one_label_is_no_task() -> None:
    with pytest.raises(UsageError, match=r"at least two, found x\. Add rows of another label"):
        split_rows(ROWS[::2])


def test_no_rows_are_no_task_either() -> None:
    with pytest.raises(UsageError, match="no labels: expected at least two, found none"):
        split_rows([])


def test_validation_rows_must_not_be_training_rows() -> None:
    with pytest.raises(UsageError, match="stand in the training data too"):
        split_rows(ROWS, valid=ROWS[:3])


def test_a_label_in_another_unicode_form_is_refused_where_no_reader_composed_it() -> None:
    rows = [*rows_of(a=9, b=9), redhost.Row(text="x", label="cafe\u0301")]
    with pytest.raises(UsageError, match="composed form"):
        split_rows(rows)


# -- the package -----------------------------------------------------------------------------------


# -- small and uneven data -------------------------------------------------------------------------


def rows_of(**counts: int) -> list[redhost.Row]:
    return [
        redhost.Row(text=f"{y} {n}", label=y) for y, count in counts.items() for n in range(count)
    ]


def test_every_row_is_counted_once_by_label_and_split() -> None:
    splits = split_rows(rows_of(a=60, b=30, c=2))
    counts = splits.label_counts()
    assert {y: sum(c.values()) for y, c in counts.items()} == {"a": 60, "b": 30, "c": 2}
    for name in ("train", "valid", "fit", "gate"):
        assert sum(c[name] for c in counts.values()) == len(getattr(splits, name))


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"a": 200, "b": 200}, []),
        ({"a": 10, "b": 10}, ["2 gate rows say little: each is 50 points"]),
        ({"a": 120, "b": 120, "c": 2}, ["too few rows to be learnt from: c ("]),
        ({"a": 400, "b": 20}, ["95% of the rows are 'a'"]),
        (
            {"a": 1000, "b": 4},
            ["too few rows to be learnt from: b (", "over 99% of the rows are 'a'"],
        ),
    ],
)
def test_what_the_numbers_of_rows_cannot_show_is_reported(counts, words) -> None:
    splits = split_rows(rows_of(**counts))
    found = splits.concerns(gate=len(splits.gate))
    assert len(found) == len(words)
    assert all(w in x for w, x in zip(words, found, strict=True))
    assert not any("gate rows" in x for x in splits.concerns(gate=None))  # by design
    assert any("no gate rows" in x for x in splits.concerns(gate=0))


@pytest.mark.parametrize(
    ("labels", "words"),
    [("aa", ""), ("ab", ", and 40 of these stand under several labels")],
)
def test_texts_that_stand_several_times_are_counted(labels, words) -> None:
    rows = [*rows_of(c=100), *rows_of(d=100)]
    rows += [redhost.Row(text=f"t {n}", label=y) for y in labels for n in range(40)]
    [found] = split_rows(rows).concerns(gate=None)
    assert found == f"280 rows have 240 distinct texts{words}"
