"""An author's rows: set aside before anything is trained, in one part each."""

from __future__ import annotations

import pytest

import redhost
from redhost.core.authoring.parts import split_rows
from redhost.registry.errors import UsageError

ROWS = [
    redhost.Row(text=f"{'red' if n % 2 else 'blue'} {n}", label="xy"[n % 2]) for n in range(240)
]


def test_rows_are_in_one_part_each_and_the_split_is_stable() -> None:
    parts = split_rows(ROWS)
    texts = [{r.text for r in p} for p in (parts.train, parts.valid, parts.fit, parts.gate)]
    assert sum(len(t) for t in texts) == 240 == len(set().union(*texts))
    assert (len(parts.fit), len(parts.gate)) == (30, 30)
    assert split_rows(ROWS[::-1]) == parts


def test_equal_texts_are_never_in_two_parts() -> None:
    parts = split_rows(ROWS + ROWS)
    texts = [{r.text for r in p} for p in (parts.train, parts.valid, parts.fit, parts.gate)]
    assert sum(len(t) for t in texts) == len(set().union(*texts))


def test_a_card_has_512_rows_where_the_data_allow() -> None:
    rows = [redhost.Row(text=f"t {n}", label="xy"[n % 2]) for n in range(2100)]
    parts = split_rows(rows)
    assert (len(parts.fit), len(parts.gate)) == (256, 256)


def test_every_label_keeps_a_row_to_train_on() -> None:
    rows = [*ROWS, redhost.Row(text="rare", label="z")]
    assert {r.label for r in split_rows(rows).train} == {"x", "y", "z"}


def test_one_label_is_no_task() -> None:
    with pytest.raises(UsageError, match="one label only: expected at least two, found x"):
        split_rows(ROWS[::2])


def test_no_rows_are_no_task_either() -> None:
    with pytest.raises(UsageError, match="no labels: expected at least two, found none"):
        split_rows([])


def test_validation_rows_must_not_be_training_rows() -> None:
    with pytest.raises(UsageError, match="stand in the training data too"):
        split_rows(ROWS, valid=ROWS[:3])
