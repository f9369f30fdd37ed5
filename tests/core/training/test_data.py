"""Authors' rows set aside: each in one split."""

from __future__ import annotations

import pytest

import redhost
from redhost.core.training.data import (
    CARD_PASSAGES,
    LONGEST_PASSAGE,
    split_documents,
    split_rows,
)
from redhost.registry.errors import UsageError

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


# -- documents set aside ---------------------------------------------------------------------------


def texts(rows) -> set[str]:
    return {r.text for r in rows}


def chapters(count: int, *, lines: int = 3) -> list[redhost.Row]:
    """Return documents of several rows each, no line of which stands in another."""
    return [
        redhost.Row(text=f"book {n} line {i}", label="", domain=f"book {n}")
        for n in range(count)
        for i in range(lines)
    ]


def test_documents_are_set_aside_whole() -> None:
    rows = chapters(40)
    splits = split_documents(rows)
    books = [
        {t.split(" line")[0] for t in texts(part)}
        for part in (splits.train, splits.valid, splits.fit, splits.gate)
    ]
    assert [len(b) for b in books] == [26, 4, 5, 5]
    assert len(set().union(*books)) == 40  # so no book is in two parts
    assert sum(map(len, (splits.train, splits.valid, splits.fit, splits.gate))) == len(rows)
    assert split_documents(rows[::-1]).train != () and texts(
        split_documents(rows[::-1]).gate
    ) == texts(splits.gate)


def test_no_passage_is_in_two_parts_though_documents_share_it() -> None:
    rows = [*chapters(40), *(redhost.Row(text="all say so", label="", domain=f"book {n}")
                             for n in range(40))]  # fmt: skip
    splits = split_documents(rows)
    each = [texts(p) for p in (splits.train, splits.valid, splits.fit, splits.gate)]
    assert sum(map(len, each)) == len(set().union(*each)) == 121
    assert "all say so" in texts(splits.fit)


def test_long_texts_are_cut_at_line_ends_and_lose_white_space_only() -> None:
    text = "\n".join(f"line {n} of a long text, {n * n}" for n in range(200))
    rows = [redhost.Row(text=f"{text}{n}", label="", domain=None) for n in range(5)]
    splits = split_documents(rows)
    assert all(len(t) <= LONGEST_PASSAGE for t in texts(splits.train))
    assert all(t.startswith("line ") for t in texts(splits.train))
    words = "x" * 3 * LONGEST_PASSAGE
    cut = split_documents([*rows, *(redhost.Row(text=words + str(n), label="") for n in range(9))])
    assert all(
        0 < len(t) <= LONGEST_PASSAGE for t in texts(cut.train) | texts(cut.fit) | texts(cut.gate)
    )


def test_a_card_shows_some_passages_of_all() -> None:
    splits = split_documents(chapters(100, lines=20))
    assert 0 < len(splits.fit) <= CARD_PASSAGES and 0 < len(splits.gate) <= CARD_PASSAGES


def test_validation_texts_of_ones_own_are_taken_less_what_is_set_aside() -> None:
    rows = chapters(20)
    aside = next(iter(split_documents(rows).gate))
    splits = split_documents(rows, valid=[redhost.Row(text="quite new", label=""), aside])
    assert texts(splits.valid) == {"quite new"}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (chapters(4), "too few documents to set any aside: expected at least 5, found 4"),
        (
            [redhost.Row(text="same", label="", domain=str(n)) for n in range(9)],
            "the documents say the same: expected passages to learn from",
        ),
    ],
)
def test_documents_that_cannot_be_split_are_refused(rows, message) -> None:
    with pytest.raises(UsageError, match=message):
        split_documents(rows)


@pytest.mark.parametrize("valid", [False, True])
def test_what_declined_texts_are_answered_is_no_label_to_learn(valid) -> None:
    """A host that answered it rightly would be counted as declining."""
    rows, wrong = rows_of(a=9, b=9), [redhost.Row(text="x", label="none")]
    with pytest.raises(UsageError, match="labels other than 'none', the answer when declined"):
        split_rows(rows, valid=wrong) if valid else split_rows([*rows, *wrong])


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
