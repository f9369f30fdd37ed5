"""The choice in an answer's `usage`, as its object `redhost`; every other byte passes.

An object `usage` of the upstream's is added to and never made up: clients read counts in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Protocol

import msgspec

__all__ = ["EVENTS", "Editor", "editor_for", "wants_usage"]

EVENTS = b"text/event-stream"
JSON = b"application/json"

LONGEST = 2**24
"""Most bytes of an answer, or of a line of events, that wait for their end; more pass unchanged."""

DATA = re.compile(rb"(^|[\r\n])(data: ?)(\{[^\r\n]*\})")
"""An event's line with a JSON object, in text that begins with a line."""


class Editor(Protocol):
    """What is done to an answer's bytes."""

    def feed(self, part: bytes) -> bytes:
        """Take the next bytes; return those to pass on now."""

    def end(self) -> bytes:
        """Return the bytes that are left at the answer's end."""


class _Whole:
    """An answer of one JSON object."""

    def __init__(self, note: Mapping[str, object]) -> None:
        self._note, self._held, self._passes = note, bytearray(), False

    def feed(self, part: bytes) -> bytes:
        if self._passes:
            return part
        self._held += part
        if len(self._held) <= LONGEST:
            return b""
        self._passes = True
        return bytes(self._held)

    def end(self) -> bytes:
        return b"" if self._passes else _noted(bytes(self._held), self._note)


class _Events:
    """A stream of events, passed on line by line."""

    def __init__(self, note: Mapping[str, object]) -> None:
        self._note, self._held = note, b""

    def feed(self, part: bytes) -> bytes:
        held = self._held + part
        cut = max(held.rfind(b"\n"), held.rfind(b"\r")) + 1
        if not cut and len(held) > LONGEST:
            cut = len(held)
        lines, self._held = held[:cut], held[cut:]
        return DATA.sub(self._replaced, lines) if b'"usage"' in lines else lines

    def end(self) -> bytes:
        return self._held

    def _replaced(self, found: re.Match[bytes]) -> bytes:
        return found[1] + found[2] + _noted(found[3], self._note)


def editor_for(kind: Mapping[bytes, bytes], note: Mapping[str, object]) -> Editor | None:
    """Return what adds a choice to an answer's `usage`; None if it passes as it is.

    Args:
        kind: The answer's headers.
        note: What describes the choice.
    """
    if kind.get(b"content-encoding", b"identity") != b"identity":
        return None
    media = kind.get(b"content-type", b"").partition(b";")[0].strip().lower()
    return _Whole(note) if media == JSON else _Events(note) if media == EVENTS else None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Wanted(msgspec.Struct):
    stream: bool | None = None
    stream_options: _StreamOptions | None = None


def wants_usage(body: bytes) -> bool:
    """Return whether a request's answer may be added to: a stream only where it asks for usage."""
    try:
        wanted = msgspec.json.decode(body, type=_Wanted)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    options = wanted.stream_options
    return not wanted.stream or (options is not None and bool(options.include_usage))


def _noted(data: bytes, note: Mapping[str, object]) -> bytes:
    """Return a JSON object with a note in its `usage`; as it is, if it has no such object."""
    kind = dict[str, msgspec.Raw]
    try:
        fields = msgspec.json.decode(data, type=kind)
        usage = msgspec.json.decode(fields.get("usage", b"null"), type=kind | None)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data
    if usage is None:
        return data
    usage["redhost"] = msgspec.Raw(msgspec.json.encode(note))
    return msgspec.json.encode({**fields, "usage": usage})
