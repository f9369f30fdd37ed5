"""Regular expressions that select modules, matched only where the time is bounded.

Python's `re` backtracks over every choice in a pattern and may take exponential time on a short
name. An untrusted pattern is matched only if it consists of characters, character sets and
alternatives, without repeated groups. The number of backtracking paths is then bounded by

    paths ≤ Π alternatives of a group · Π (n + 1) for each * or + · 2 for each ?

for a name of n characters. Patterns with more than `MOST` paths, or other syntax, are not matched.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MOST = 50_000
"""Maximum number of paths: `.*layers\\.\\d+\\.(q|k|v)_proj` has 12,000 for 60 characters."""

TOTAL = 30_000_000
"""Maximum number of paths for all names that one pattern is matched with."""

LONGEST = 1000
"""Maximum length of a pattern, in characters."""

_SIGN = re.compile(
    r"(?P<one>\\[dwDW.\-]|\[\^?(?:\w-\w|\w|\\?\.)+\]|[\w.\-])(?:(?P<many>[*+])\??|(?P<maybe>\?)\??)?"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\))|(?P<bar>\|)|[\^$]"
)
"""One element of a pattern with its quantifier, greedy or lazy."""


class Pattern:
    """A regular expression, compiled once.

    Args:
        text: The expression.
    """

    def __init__(self, text: str) -> None:
        self._choices, self._compiled, self._left = _choices(text), _compiled(text), TOTAL

    @property
    def broken(self) -> bool:
        """Whether it is of the supported syntax and not a valid regular expression."""
        return self._choices is not None and self._compiled is None

    def matches(self, name: str) -> bool | None:
        """Return whether it matches a whole name; None if matching is not bounded, or too much."""
        if self._choices is None or self._compiled is None:
            return None
        fixed, repeated = self._choices
        paths = fixed * (len(name) + 1) ** repeated
        if paths > min(MOST, self._left):
            return None
        self._left -= paths
        return self._compiled.fullmatch(name) is not None


class Ends:
    r"""Plain names of modules, each of which may end a name; a dot matches any character.

    They are compared all at once, from the last character to the first, with a bit for each. So
    the time is that of a name's length, whatever the names are.

    Args:
        patterns: Names as in PEFT's `rank_pattern`: with ``^`` a whole name, and ``\.`` a dot.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._signs, self._lengths = list[dict[str, int]](), dict[int, int]()
        self._whole, self._all = 0, 0
        for number, pattern in enumerate(patterns):
            bit, signs = 1 << number, pattern.removeprefix("^").replace(r"\.", "\0")[::-1]
            self._all |= bit
            self._whole |= bit * pattern.startswith("^")
            self._lengths[len(signs)] = self._lengths.get(len(signs), 0) | bit
            self._signs += [{} for _ in range(len(signs) - len(self._signs))]
            for at, sign in zip(self._signs, signs, strict=False):
                key = {".": "", "\0": "."}.get(sign, sign)
                at[key] = at.get(key, 0) | bit

    def first(self, name: str) -> int | None:
        """Return the number of the first of them that ends a name, after a dot or as a whole."""
        matches, left = 0, self._all
        for length, sign in enumerate(reversed(name)):
            if sign == ".":
                matches |= left & self._lengths.get(length, 0) & ~self._whole
            at = self._signs[length] if length < len(self._signs) else {}
            left &= at.get(sign, 0) | at.get("", 0)
            if not left:
                break
        matches |= left & self._lengths.get(len(name), 0)
        return (matches & -matches).bit_length() - 1 if matches else None


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
