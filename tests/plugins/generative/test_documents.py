"""Documents are dealt whole, and passages are pieces of them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from red_lab.arithmetic import Split
from red_lab.generative.documents import Document, Passage, cut, deal, passages

SHARES = {"train": 0.6, "valid": 0.1, "fit": 0.1, "gate": 0.1, "test": 0.1}
UNEVEN = [32000, 11000, 9500, 6000, 6000, 4000, *[2000] * 5, *[500] * 12]
"""Like the catalogues of a language: a few hold most of the text."""


def documents(lengths: list[int], domain: str = "d") -> list[Document]:
    return [Document(domain, f"{n}", "x" * length) for n, length in enumerate(lengths)]


@given(st.text(), st.integers(4, 60))
def test_pieces_are_the_text_again(text: str, size: int) -> None:
    assert "".join(cut(text, size=size)) == text


def test_a_piece_ends_with_a_line_or_with_a_word() -> None:
    lines = "".join(f"line number {n}\n" for n in range(60))
    assert all(chunk.endswith("\n") for chunk in cut(lines, size=100))
    assert all(len(chunk) <= 125 for chunk in cut(lines, size=100))
    words = "tales have no lines " * 60
    chunks = cut(words, size=100)
    assert all(chunk.endswith(" ") for chunk in chunks)
    assert all(75 < len(chunk) <= 125 for chunk in chunks)


def test_a_short_rest_stays_with_the_piece_before() -> None:
    assert [len(p) for p in cut("abcde fghi " * 9 + "end", size=99)] == [102]


@pytest.mark.parametrize("lengths", [UNEVEN, [900] * 400], ids=["few and uneven", "many"])
def test_every_document_lies_in_one_part_and_every_part_has_its_share(lengths) -> None:
    given_ = documents(lengths)
    dealt = deal(given_, shares=SHARES)
    assert sorted(d for part in dealt.values() for d in part) == sorted(given_)
    for part, share in SHARES.items():
        found = sum(len(d.text) for d in dealt[part]) / sum(lengths)
        assert abs(found - share) < 0.1 * share + 0.01


def test_the_deal_depends_on_names_and_not_on_the_order() -> None:
    given_ = documents(UNEVEN)
    shuffled = random.Random(1).sample(given_, len(given_))
    assert deal(given_, shares=SHARES) == deal(shuffled, shares=SHARES)
    renamed = [d._replace(name=f"other {d.name}") for d in documents([900] * 40)]
    names = [d.name.split()[-1] for d in deal(renamed, shares=SHARES)["train"]]
    assert names != [d.name for d in deal(documents([900] * 40), shares=SHARES)["train"]]


def test_no_document_dominates() -> None:
    long = Document("d", "long", "".join(f"long line {n}\n" for n in range(4000)))
    short = [Document("d", f"short {n}", f"short text {n}\n" * 9) for n in range(9)]
    found = passages([long, *short], size=150, most=2000, seen=set(), held=None)
    assert sum(p.document == "long" for p in found) <= len(found) / 2
    assert {p.document for p in found} == {d.name for d in (long, *short)}


def test_no_text_is_taken_twice_not_even_in_another_part() -> None:
    licence = Document("d", "a", "the same head\n" * 20)
    again = licence._replace(name="b", text=licence.text.replace("\n", " \n"))
    own = Document("d", "c", "another text\n" * 20)
    seen: set[str] = set()
    first = passages([licence], size=500, most=10_000, seen=seen, held=None)
    second = passages([again, own], size=500, most=10_000, seen=seen, held=None)
    assert [p.document for p in (*first, *second)] == ["a", "c"]


def test_a_passage_with_a_held_out_pair_is_left_out() -> None:
    split = Split.numbered(0)
    a, b = split.test_pairs()[0]
    with_pairs = [
        Document("d", "sum", f"x = {a} + {b}\n"),
        Document("d", "inverted", f"{a + b} - {b}\n"),
    ]
    free = Document("d", "free", "x = y\n")
    taken = passages([*with_pairs, free], size=100, most=1000, seen=set(), held=split)
    assert taken == (Passage("d", "free", 0, "x = y\n"),)
    assert len(passages([*with_pairs, free], size=100, most=1000, seen=set(), held=None)) == 3
