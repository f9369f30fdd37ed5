"""Spans of a text as text: ``0:5:PER|10:16:LOC``, sorted, and ``none`` where there is none.

A set of labels (`core.label_sets`), each with its place in the text: its first character, and the
character after its last. This is the form of spans in rows, answers and cards; without torch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import pairwise

import msgspec

from redhost.core.label_sets import Notation, join_parts, split_labels

PLACE = re.compile(r"(\d+):(\d+):(?=.)", re.DOTALL)


class Span(msgspec.Struct, frozen=True, order=True):
    """A labelled part of a text.

    Attributes:
        start: Its first character.
        end: The character after its last.
        label: Its label.
    """

    start: int
    end: int
    label: str


def join_spans(spans: Iterable[Span]) -> str:
    """Return spans as text."""
    return join_parts(f"{s.start}:{s.end}:{s.label}" for s in sorted({*spans}))


def split_spans(answer: str) -> tuple[Span, ...]:
    """Return the spans in an answer in text form; parts without a place are skipped."""
    found = ((PLACE.match(part), part) for part in split_labels(answer))
    return tuple(
        Span(int(place[1]), int(place[2]), part[place.end() :]) for place, part in found if place
    )


def label_of(part: str) -> str:
    """Return the label of one element of a set of labels or spans, without its place."""
    return PLACE.sub("", part, count=1)


def read_spans(cell: object, text: str) -> str | None:
    """Return the spans of a row in a file in text form; None if the cell is not a list of spans.

    Args:
        cell: A list of spans, each ``[start, end, label]`` or an object with these keys, also as
            JSON text; or spans in text form.
        text: The text: spans lie inside it, and no two of one label overlap.
    """
    if isinstance(cell, str):
        parts = [part.strip() for part in split_labels(cell.strip())]
        if not parts or PLACE.match(parts[0]):
            spans = [*split_spans(join_parts(parts))] if parts else []
            return _checked(spans, text) if len(spans) == len(parts) else None
        try:
            cell = msgspec.json.decode(cell)
        except msgspec.DecodeError:
            return None
    if not isinstance(cell, list):
        return None
    try:
        return _checked([_span(item) for item in cell], text)
    except (msgspec.ValidationError, KeyError):
        return None


def _span(item: object) -> Span:
    """Return one span, parsed from a file."""
    if isinstance(item, Mapping):
        item = [item["start"], item["end"], item["label"]]
    return Span(*msgspec.convert(item, tuple[int, int, str]))


def _checked(spans: list[Span], text: str) -> str | None:
    """Return spans in text form; None if one lies outside the text, or has an invalid label."""
    inside = all(0 <= s.start < s.end <= len(text) for s in spans)
    named = all(s.label and not PLACE.match(s.label) for s in spans)
    by_label = sorted(spans, key=lambda s: (s.label, s.start))
    apart = all(a.label != b.label or a.end <= b.start for a, b in pairwise(by_label))
    return join_spans(spans) if inside and named and apart else None


SPANS = Notation(
    read=read_spans,
    expected="spans in {field}: a list of [start, end, label] within 0 … {size}",
    hint="Count characters from 0, the end not included; of a text without any write []. No two "
    "spans of one label overlap.",
)
"""How spans are written in the rows of a file."""
