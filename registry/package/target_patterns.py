"""A regular expression that names modules, matched where it cannot take long.

Python's `re` goes back to every choice that a pattern leaves, and may take for ever over a short
name. A stranger's pattern is matched only if it is one of single characters, sets of characters and
alternatives, without repeated groups: each of its choices is then met once on a way, so

    ways ≤ Π alternatives of a group · Π (n + 1) for each * or + · 2 for each ?

for a name of n characters. Beyond `MOST` ways, or with any other sign, there is no answer.
"""

from __future__ import annotations

import re

MOST = 50_000
"""Ways to match a name. `.*layers\\.\\d+\\.(q|k|v)_proj` has 12,000 for one of 60 characters."""

LONGEST = 1000
"""Characters of a pattern that is looked at."""

_SIGN = re.compile(
    r"(?P<one>\\[dwDW.\-]|\[\^?(?:\w-\w|\w|\\?\.)+\]|[\w.\-])(?:(?P<many>[*+])\??|(?P<maybe>\?)\??)?"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<bar>\|)|[\^$]"
)
"""A sign of a pattern with what repeats it, lazily or not."""


def is_broken(pattern: str) -> bool:
    """Tell whether a pattern that can be looked at is no regular expression."""
    return _choices(pattern) is not None and _compiled(pattern) is None


def matches(pattern: str, name: str) -> bool | None:
    """Tell whether a pattern matches the whole of a name; None where that could take long."""
    choices = _choices(pattern)
    if choices is None:
        return None
    fixed, repeated = choices
    compiled = _compiled(pattern)
    if compiled is None or fixed * (len(name) + 1) ** repeated > MOST:
        return None
    return compiled.fullmatch(name) is not None


def _choices(pattern: str) -> tuple[int, int] | None:
    """Return the ways that do not depend on a name, and the number of * and +.

    None where a pattern has other signs, is too long or leaves too many ways.
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
