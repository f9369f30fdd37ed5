"""Who brought which top-level name into a site folder, read from RECORD files alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from .discover import canonical

__all__ = ["Owners"]

_TOP = re.compile(rb'(?m)^"?([^/,"\r\n]+)[/,]')


class Owners:
    """The top-level names of site folders; each folder is read once."""

    def __init__(self) -> None:
        self._known: dict[Path, Mapping[str, frozenset[str]]] = {}

    def others(self, site: Path, module: str, *, dist: str) -> frozenset[str]:
        """Return the distributions, other than this one, that bring a top-level name.

        Args:
            site: The folder that holds the dist-info folders.
            module: The name; case does not tell two apart, as some systems do not either.
            dist: Who may bring it.
        """
        if site not in self._known:
            self._known[site] = _read(site)
        return self._known[site].get(module.casefold(), frozenset()) - {canonical(dist)}


def _read(site: Path) -> Mapping[str, frozenset[str]]:
    found: defaultdict[str, set[str]] = defaultdict(set)
    for info in (*site.glob("*.dist-info"), *site.glob("*.egg-info")):
        dist = canonical(info.name.partition("-")[0].removesuffix(".egg-info"))
        for name in _names(info):
            found[name.casefold()].add(dist)
    return {name: frozenset(dists) for name, dists in found.items()}


def _names(info: Path) -> set[str]:
    try:
        record = info / "RECORD"
        if record.is_file():
            tops = {m.decode("utf-8", "replace") for m in _TOP.findall(record.read_bytes())}
            return {top.removesuffix(".py") for top in tops}
        return set((info / "top_level.txt").read_text("utf-8").split())
    except (OSError, UnicodeDecodeError):
        return set()
