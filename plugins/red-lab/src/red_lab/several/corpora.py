"""Load real texts with several answers each: tags by maintainers, and spans marked by rules.

Debian's index contains a one-line description of each package and its maintainers' tags; it is read
with `apt-cache`. No available package contains texts with spans annotated by people, so rules mark
them in the sentences of `red_lab.text.corpora`. Rules match names. For countries that do not occur
in its training rows, an expert has to find from context what the rule finds by name.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import redhost
from red_lab import newsgroups
from red_lab.text.corpora import CORPORA
from redhost.core.types import BackgroundRow

__all__ = ["STUDIES", "Study", "read_index", "union"]

Part = Literal["train", "test"]

FACETS: Mapping[str, str] = {
    "fields": r"field::(biology|finance|geography|mathematics|statistics)",
    "interfaces": r"interface::(3d|commandline|daemon|graphical|shell|text-mode|web|x11)"
    r"|uitoolkit::(gtk|ncurses|qt|sdl|wxwidgets|xlib)",
    "languages": r"implemented-in::(c|c\+\+|java|lisp|ocaml|perl|python|shell)",
    "media": r"works-with::(archive|audio|db|file|image|mail|text|video)",
    "network": r"network::(client|server|service)|protocol::(http|ip|ipv6|ssl)",
}
"""Team → its tags: those of these facets that a hundred packages have."""

FOLDS, VALIDATION, TEST = 5, 3, 4
"""Folds of source packages, by hash, since descriptions from one source resemble each other."""

BACKGROUND = 256

COUNTRY = (
    "argentina|australia|austria|bahrain|bangladesh|belgium|bolivia|brazil|britain|canada|"
    "chile|china|colombia|cuba|denmark|ecuador|egypt|ethiopia|finland|france|germany|ghana|"
    "greece|guatemala|honduras|hungary|iceland|india|indonesia|iran|iraq|ireland|israel|italy|"
    "jamaica|japan|jordan|kenya|kuwait|libya|luxembourg|malaysia|mexico|morocco|netherlands|"
    "nicaragua|nigeria|norway|pakistan|panama|paraguay|peru|philippines|poland|portugal|qatar|"
    "romania|singapore|spain|sudan|sweden|switzerland|syria|taiwan|tanzania|thailand|tunisia|"
    "turkey|uganda|uruguay|venezuela|yugoslavia|zaire|zambia|zimbabwe"
)

RULES: Mapping[str, Mapping[str, str]] = {
    "newswire": {
        "amount": r"(?:(?:one|two|three|four|five|six|seven|eight|nine|ten|\w+ty) )?"
        r"(?:mln|billion|bln) (?:dlrs|stg|yen|marks|francs|tonnes)",
        "country": COUNTRY,
    },
    "newsgroups": {
        "attribution": r"in article (?:\w+ ){1,12}?(?:writes|wrote)",
        "contraction": r"(?:i m|i ve|i d|i ll|don t|doesn t|can t|isn t|didn t|won t)",
    },
}
"""Team and corpus → label → the pattern that its rule marks."""

WORDS, MOST_WORDS, MOST, MOST_TEST, EMPTY = 25, 200, 1500, 1000, 6
"""Words of a sentence, words read of a text; most training and test sentences; one in so many texts
without a span or a tag is kept."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Teams whose training rows have only their own labels, and test rows with all labels.

    Attributes:
        title: Description of the texts.
        task: The task of the backbone.
        teams: Names of the teams.
        rows: (part, validation) → rows; training rows have a team's labels and its name.
        clusters: Test rows → the cluster of each.
        background: Texts outside every team's domain.
        complete: validation → training rows, each text with the labels of every team; None if the
            pooled rows already have them.
        unseen: Whether a test row contains a span that no training row has; None if not studied.
    """

    title: str
    task: str
    teams: Sequence[str]
    rows: Callable[[Part, bool], list[redhost.Row]]
    clusters: Callable[[Sequence[redhost.Row]], list[str]]
    background: Callable[[], list[BackgroundRow]]
    complete: Callable[[bool], list[redhost.Row]] | None = None
    unseen: Callable[[redhost.Row], bool] | None = None


def union(rows: Sequence[redhost.Row]) -> list[redhost.Row]:
    """Return the pooled rows: each text once, with the labels of all teams that have it."""
    found: dict[str, str] = {}
    for row in rows:
        known = found.setdefault(row.text, row.label)
        if known != row.label:
            found[row.text] = _joined({*known.split("|"), *row.label.split("|")})
    return [redhost.Row(text=t, label=y, domain="everybody") for t, y in found.items()]


def _joined(labels: set[str]) -> str:
    return "|".join(sorted(labels - {"none"})) or "none"


def _number(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


# -- tags ----------------------------------------------------------------------------------------


@cache
def read_index() -> dict[str, tuple[str, frozenset[str]]]:
    """Return description → the source package and the tags."""
    try:
        done = subprocess.run(
            ["apt-cache", "dumpavail"],  # noqa: S607
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        done = None
    found = {} if done is None else dict(_described(done.stdout))
    if not found:
        raise redhost.MissingError(
            "the study of tags reads Debian's index of packages",
            expected="a Debian system after 'apt-get update'",
            found="no index",
            hint="Name the other study: redhost lab several spans",
        )
    return found


def _described(index: str) -> Iterator[tuple[str, tuple[str, frozenset[str]]]]:
    for record in index.split("\n\n"):
        joined = record.replace("\n ", " ")  # a line that begins with a space continues a field
        fields = dict(line.split(": ", 1) for line in joined.split("\n") if ": " in line)
        if "Tag" not in fields:
            continue
        text = re.search(r"^Description: (.*)$", record, re.MULTILINE)
        source = fields.get("Source", fields["Package"]).split()[0]
        if text is not None:
            yield text[1], (source, frozenset(re.split(r",\s*", fields["Tag"].strip())))


def _chosen(part: Part, validation: bool) -> Iterator[tuple[str, dict[str, set[str]]]]:
    """Yield descriptions and their tags by team; a fifth of the source packages is for tests."""
    fold = VALIDATION if validation else TEST
    chosen = {fold} if part == "test" else {*range(FOLDS)} - {fold, TEST}
    for text, (source, tags) in sorted(read_index().items()):
        if _number(source) % FOLDS in chosen:
            yield text, {f: {t for t in tags if re.fullmatch(p, t)} for f, p in FACETS.items()}


def _own(part: Part, validation: bool) -> list[redhost.Row]:
    """Return tagged descriptions; a team's training rows are those with one of its tags."""
    made = list[redhost.Row]()
    for text, tags in _chosen(part, validation):
        if part == "train":
            made += [
                redhost.Row(text=text, label=_joined(y), domain=f) for f, y in tags.items() if y
            ]
        elif any(tags.values()):
            made.append(redhost.Row(text=text, label=_all(tags)))
    return made


def _drawn(part: Part, validation: bool, *, complete: bool = False) -> list[redhost.Row]:
    """Return descriptions, with tags or without; a team has a fifth of them, drawn by hash.

    Training rows have only the tags of their team, unless `complete` is set.
    """
    made, teams = list[redhost.Row](), tuple(FACETS)
    for text, tags in _chosen(part, validation):
        if not any(tags.values()) and _number(text) % EMPTY:
            continue
        team = teams[_number(f"team {text}") % len(teams)]
        own = part == "train" and not complete
        label = _joined(tags[team]) if own else _all(tags)
        made.append(redhost.Row(text=text, label=label, domain=team if own else None))
    return made


def _all(tags: Mapping[str, set[str]]) -> str:
    return _joined({t for some in tags.values() for t in some})


def _untagged() -> list[BackgroundRow]:
    every = re.compile("|".join(FACETS.values()))
    texts = [
        text
        for text, (source, tags) in read_index().items()
        if _number(source) % FOLDS < VALIDATION and not any(every.fullmatch(t) for t in tags)
    ]
    return [BackgroundRow(text=t) for t in sorted(texts, key=_number)[:BACKGROUND]]


# -- spans ---------------------------------------------------------------------------------------


def _marked(part: Part, validation: bool) -> list[redhost.Row]:
    """Return sentences of both corpora with the spans that their team's rules mark."""
    return [row for team in RULES for row in _sentences(team, part, validation)]


def _sentences(team: str, part: Part, validation: bool) -> list[redhost.Row]:
    rows = CORPORA[team].rows("test" if part == "test" else "train", validation)
    texts = dict.fromkeys(s for row in rows for s in _cut(row.text))
    made = [redhost.Row(text=t, label=_mark(team, t), domain=team) for t in texts]
    made = [r for r in made if r.label != "none" or _number(r.text) % EMPTY == 0]
    if part == "train":
        made = [r for r in made if not _unseen(r)]
    made.sort(key=lambda r: _number(r.text))
    return made[: MOST if part == "train" else MOST_TEST]


def _cut(text: str) -> Iterator[str]:
    words = text.split()[:MOST_WORDS]
    for start in range(0, len(words), WORDS):
        yield " ".join(words[start : start + WORDS])


def _mark(team: str, text: str) -> str:
    places = [
        (m.start(), m.end(), label)
        for label, rule in RULES[team].items()
        for m in re.finditer(rf"\b(?:{rule})\b", text)
    ]
    return "|".join(f"{a}:{b}:{y}" for a, b, y in sorted(places)) or "none"


HELD = frozenset(c for c in COUNTRY.split("|") if _number(c) % 3 == 0)
"""A third of the countries; no training row of newswire contains one of them."""


def _unseen(row: redhost.Row) -> bool:
    return row.domain == "newswire" and not HELD.isdisjoint(row.text.split())


STUDIES: Mapping[str, Study] = {
    "tags": Study(
        title="Descriptions of Debian packages: each team has the texts with one of its tags",
        task="multi-label",
        teams=tuple(FACETS),
        rows=_own,
        clusters=lambda rows: [read_index()[r.text][0] for r in rows],
        background=_untagged,
    ),
    "drawn": Study(
        title="The same descriptions: each team has a fifth of them, most without one of its tags",
        task="multi-label",
        teams=tuple(FACETS),
        rows=_drawn,
        clusters=lambda rows: [read_index()[r.text][0] for r in rows],
        background=newsgroups.background,
        complete=lambda validation: _drawn("train", validation, complete=True),
    ),
    "spans": Study(
        title="Newswire and posts (letters only), with spans marked by rules",
        task="spans",
        teams=tuple(RULES),
        rows=_marked,
        clusters=lambda rows: [r.text for r in rows],
        background=newsgroups.background,
        unseen=_unseen,
    ),
}
