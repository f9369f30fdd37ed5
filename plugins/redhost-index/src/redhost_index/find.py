"""Search a catalogue by words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from redhost.registry.errors import RedhostError, excerpt
from redhost.registry.home.generations import Generations
from redhost.registry.package.discover import canonical

from .fits import Fit, fit_of_entry
from .revocations import Revoked, revoked_in
from .schema import Catalogue, Version


class Found(Struct, frozen=True, kw_only=True):
    """A version that has every word.

    Attributes:
        id: Its id.
        dist: Its distribution.
        version: Its version.
        domain: The inputs it is for.
        question: The question it answers; empty for the default one.
        labels: Its first labels.
        label_count: How many it has.
        accuracy: Its accuracy on its own gate rows, as its author measured it.
        backbone: The name of its backbone.
        fits: Whether it fits the current backbone; null if that is not known.
        why: Why not, or why it is not known.
        sha256: The sha256 of its wheel.
        revoked: Why it is revoked, as the home knows by digest or name and version; null if it is
            not.
    """

    id: str
    dist: str
    version: str
    domain: str
    question: str
    labels: tuple[str, ...]
    label_count: int
    accuracy: float | None
    backbone: str
    fits: bool | None
    why: str
    sha256: str
    revoked: str | None = None


def search(catalogue: Catalogue, words: Sequence[str], *, home: Path) -> tuple[Found, ...]:
    """Return every expert that has all words, the closest first.

    Of its versions the newest that fits is returned; if none does, the newest. One that is
    revoked is returned only if all are.

    Args:
        catalogue: The catalogue.
        words: Words in the id, distribution, domain, question, labels or backbone's name.
        home: The state folder, whose backbone they should fit.
    """
    matches = list[tuple[int, Found]]()
    wanted = [{form, canonical(form)} for form in map(str.casefold, words)]
    revoked = revoked_in(home)
    for version, fit in _chosen(catalogue, current_fingerprint(home), revoked):
        if (distance := _distance(version, wanted)) is not None:
            matches.append((distance, _found(version, fit, revoked)))
    return tuple(found for _, found in sorted(matches, key=lambda pair: pair[0]))


def _chosen(
    catalogue: Catalogue, fingerprint: str, revoked: Revoked
) -> Iterable[tuple[Version, Fit]]:
    """Return of each expert the newest version that fits, else the newest; no revoked one first."""
    chosen, ranks = dict[str, tuple[Version, Fit]](), dict[str, int]()
    for version in catalogue.versions:  # the newest of each distribution comes first
        dist = canonical(version.dist)
        if version.kind != "expert" or ranks.get(dist) == 0:
            continue
        fit = fit_of_entry(version, fingerprint)
        usable = revoked.listed(version) is None
        rank = 2 * (not usable) + (not fit.fits)
        if dist not in chosen or rank < ranks[dist]:
            chosen[dist], ranks[dist] = (version, fit), rank
    return chosen.values()


def _distance(version: Version, words: Sequence[Collection[str]]) -> int | None:
    """Return how far words are from a version, None if it lacks one: id 0, domain 1, labels 2.

    Args:
        version: The version.
        words: The forms of each word.
    """
    fields = (
        f"{version.id}\n{version.dist}\n{canonical(version.dist)}".casefold(),
        f"{version.domain}\n{version.question}".casefold(),
        "\n".join((*version.labels, version.backbone, version.form)).casefold(),
    )
    total = 0
    for forms in words:
        where = (n for n, text in enumerate(fields) if any(form in text for form in forms))
        if (nearest := next(where, None)) is None:
            return None
        total += nearest
    return total


def current_fingerprint(home: Path) -> str:
    """Return the fingerprint of the composed backbone, else of the only one installed."""
    try:
        generations = Generations(home)
        number = generations.current()
        if number is not None:
            return generations.load(number).backbone.fingerprint
        return _installed_fingerprint(home)
    except RedhostError:
        return ""


def _installed_fingerprint(home: Path) -> str:
    from redhost.registry.package.discover import discover
    from redhost.registry.queries.settings import (
        choose_backbone,
        installed_backbone,
        wanted_backbone,
    )

    package = choose_backbone(discover("backbone"), wanted_backbone(home))
    read = installed_backbone(package).value
    return read[0].fingerprint if read else ""


def _found(version: Version, fit: Fit, revoked: Revoked) -> Found:
    return Found(
        id=version.id,
        dist=version.dist,
        version=version.version,
        domain=excerpt(version.domain),
        question=version.question,
        labels=version.labels,
        label_count=version.label_count,
        accuracy=version.accuracy,
        backbone=version.backbone,
        fits=fit.fits,
        why=fit.why,
        sha256=version.sha256,
        revoked=revoked.listed(version),
    )
