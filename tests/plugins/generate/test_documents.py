"""Documents: set aside whole, and cut into passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from redhost_author.strict import strict_check
from redhost_author.targets import resolve_targets
from redhost_author.training.data import split_rows
from redhost_generate.documents import CARD_PASSAGES, LONGEST_PASSAGE, split_documents

import redhost
from redhost.registry.errors import UsageError


def texts(rows: Sequence[redhost.Row]) -> set[str]:
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


def test_passages_of_a_card_are_not_counted_as_rows_which_are_tokens() -> None:
    splits = split_rows(chapters(40), task=redhost.plugins.make_task("generation"))
    assert splits == replace(split_documents(chapters(40)), task=splits.task)
    assert splits.task.name == "generation" and splits.concerns(gate=len(splits.gate)) == []
    assert any("no gate rows" in concern for concern in splits.concerns(gate=0))


def test_a_strict_check_counts_passages(speaking_experts) -> None:
    folder = speaking_experts["sums"]
    [target] = resolve_targets([str(folder)], home=folder, backbone=None)
    [few] = [v for v in strict_check(target) if v.field == "card.gate"]
    assert few.expected == "at least 32 gate passages" and few.found.endswith(" gate passages")
    assert "more documents" in few.hint


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
