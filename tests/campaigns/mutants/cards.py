"""Format-aware mutations of a card of texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random

from mutants.scramble import Change

__all__ = ["ROWS"]

ROW = (
    b"",
    b"{}",
    b"null",
    b"[]",
    b"{nope",
    b"\xff\xfe",
    b'{"text":1,"label":"2","part":"fit"}',
    b'{"text":"x","label":"zz","part":"fit"}',
    b'{"text":"","label":"2","part":"fit"}',
    b'{"text":"x","label":"2","part":"both"}',
    b'{"text":"\\ud800","label":"2","part":"fit"}',
    b'{"text":"x","text":"y","label":"2","part":"gate"}',
    b'{"text":"' + b"x" * 2**20 + b'","label":"2","part":"fit"}',
    b"[" * 100_000,
)


def _rows(change: Callable[[list[bytes], Random], object]) -> Change:
    def whole(data: bytes, random: Random) -> bytes:
        rows = data.splitlines()
        change(rows, random)
        return b"".join(row + b"\n" for row in rows)

    return whole


def _another(rows: list[bytes], random: Random) -> None:
    rows[random.randrange(len(rows))] = random.choice(ROW)


def _relabel(rows: list[bytes], random: Random) -> None:
    place = random.randrange(len(rows))
    row = json.loads(rows[place])
    row["label"] = random.choice(("2", "3", "4", "5"))
    rows[place] = json.dumps(row).encode()


def _add(rows: list[bytes], random: Random) -> None:
    rows.insert(random.randrange(len(rows)), random.choice(rows))


ROWS: Mapping[str, Change] = {
    "another row": _rows(_another),
    "a row missing": _rows(lambda rows, random: rows.pop(random.randrange(len(rows)))),
    "a row twice": _rows(_add),
    "rows shuffled": _rows(lambda rows, random: random.shuffle(rows)),
    "a row relabelled": _rows(_relabel),
    "empty lines": lambda data, random: b"\n" * random.choice((10, 10_000, 2**22)) + data,
    "lines alone": lambda data, random: b"1\n" * 2**21,
    "no line ends": lambda data, random: data.replace(b"\n", b" "),
    "old line ends": lambda data, random: data.replace(b"\n", b"\r"),
}
"""Name → a change to a card of texts."""
