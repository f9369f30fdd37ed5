"""Regular expressions that select modules, matched only where the time is bounded.

Python's `re` backtracks over every choice in a pattern and may take exponential time on a short
name. An untrusted pattern is matched only if it consists of characters, character sets and
alternatives, without repeated groups. The number of backtracking paths is then bounded by

    paths ≤ Π alternatives of a group · Π (n + 1) for each * or + · 2 for each ?

for a name of n characters. Patterns with more than `MOST` paths, or other syntax, are not matched.
"""

from __future__ import annotations

import re

MOST = 50_000
"""Maximum number of paths: `.*layers\\.\\d+\\.(q|k|v)_proj` has 12,000 for 60 characters."""

LONGEST = 1000
"""Maximum length of a pattern, in characters."""

_SIGN = re.compile(
    r"(?P<one>\\[dwDW.\-]|\[\^?(?:\w-\w|\w|\\?\.)+\]|[\w.\-])(?:(?P<many>[*+])\??|(?P<maybe>\?)\??)?"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<bar>\|)|[\^$]"
)
"""One element of a pattern with its quantifier, greedy or lazy."""


def is_broken(pattern: str) -> bool:
    """Return whether a pattern of the supported syntax is not a valid regular expression."""
    return _choices(pattern) is not None and _compiled(pattern) is None


def matches(pattern: str, name: str) -> bool | None:
    """Return whether a pattern matches a whole name; None if matching is not bounded."""
    choices = _choices(pattern)
    if choices is None:
        return None
    fixed, repeated = choices
    compiled = _compiled(pattern)
    if compiled is None or fixed * (len(name) + 1) ** repeated > MOST:
        return None
    return compiled.fullmatch(name) is not None


def _choices(pattern: str) -> tuple[int, int] | None:
    """Return the number of paths that is independent of the name, and the number of * and +.

    None if the pattern has other syntax, is too long or has too many paths.
    """
    if len(pattern) > LONGEST:
        return None
    fixed, repeated, at, bars = 1, 0, 0, [1]
    while at < len(pattern):
        sign = _SIGN.match(pattern, at)
        if sign is None:
            return None
        at, kind = sign.end(), sign.lastgroup
        repeated += kind == "many"
        fixed *= 2 if kind == "maybe" else 1
        if kind == "open":
            bars.append(1)
        elif kind == "bar":
            bars[-1] += 1
        elif kind == "close" and len(bars) > 1:
            fixed *= bars.pop()
        if fixed > MOST or repeated > MOST.bit_length():
            return None
    return fixed * bars[0], repeated


def _compiled(pattern: str) -> re.Pattern[str] | None:
    try:
        return re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return None
