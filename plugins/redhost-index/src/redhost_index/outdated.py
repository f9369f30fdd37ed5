"""Which newer versions an index has of what is composed here, and which of them fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

from msgspec import Struct
from packaging.version import Version as Number
from redhost_sync.index import TIMEOUT, Link, Project
from redhost_sync.sources import fitting, set_by_user

from redhost.registry.errors import RedhostError, excerpt

from .composed import InUse, in_use
from .fits import Fit, fit_of_entry
from .place import Place, place_at
from .revocations import Revoked, revoked_in
from .schema import Version, number_of
from .wheel_fits import SMALL, fit_of_metadata, fit_of_python, fit_of_wheel

WORKERS = 16
"""Requests at a time."""

NEWEST = 20
"""Most newer versions of a package that are listed."""

EXAMINED = 5
"""Most wheels of a package that are downloaded to see whether they fit."""

T = TypeVar("T")
U = TypeVar("U")


class Newer(Struct, frozen=True, kw_only=True):
    """A newer version of a package.

    Attributes:
        version: The version.
        file: The file name of its wheel.
        sha256: The sha256 that index or catalogue promise; empty if neither does.
        fits: Whether it can be composed here; null if that is not known or is no question.
        why: Why not, or why it is not known.
        yanked: Why it was yanked; null if it was not.
        revoked: Why it is revoked, as this home knows; null if it is not.
    """

    version: str
    file: str
    sha256: str = ""
    fits: bool | None = None
    why: str = ""
    yanked: str | None = None
    revoked: str | None = None


class Standing(Struct, frozen=True, kw_only=True):
    """A package in use, beside what its index has.

    Attributes:
        kind: ``expert``, ``backbone``, ``plugin`` or ``redhost``.
        id: The id of an expert or backbone, else the distribution.
        dist: Its distribution.
        version: The version in use.
        question: The question that it answers; empty for the default one.
        source: The index or folder that was asked; empty if none is known.
        listed: Whether that has the project.
        newest: The newest version that fits and is neither yanked nor revoked; empty if there is
            none.
        newer: The newer versions, the newest first.
        yanked: Why the version in use was yanked; null if it was not.
        revoked: Why the version in use is revoked, as this home knows; null if it is not.
        status: ``archived``, ``quarantined`` or ``deprecated``, as the index says; else empty.
        status_reason: Why.
        problem: Why the index could not be asked; empty if it was.
    """

    kind: str
    id: str
    dist: str
    version: str
    question: str = ""
    source: str = ""
    listed: bool = False
    newest: str = ""
    newer: tuple[Newer, ...] = ()
    yanked: str | None = None
    revoked: str | None = None
    status: str = ""
    status_reason: str = ""
    problem: str = ""


class Outdated(Struct, frozen=True, kw_only=True):
    """The result of `outdated`.

    Attributes:
        home: The state folder.
        packages: The packages in use: experts, backbones, plugins, redhost.
        warnings: What is odd about an index or its catalogue.
    """

    home: str
    packages: tuple[Standing, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Offered:
    """What a place has of a package in use.

    Attributes:
        package: The package.
        place: The place; None if none is known.
        project: What it says.
        problem: Why it could not be asked.
        links: Version → its wheel, of the newer versions, the newest first.
        fits: File → whether it fits.
        promised: File → the sha256 that a catalogue promises.
        revoked: What the home knows to be revoked.
        refused: Versions that were refused; they are not offered again.
    """

    package: InUse
    place: Place | None = None
    project: Project = field(default_factory=Project)
    problem: str = ""
    links: Mapping[str, Link] = field(default_factory=dict)
    fits: dict[str, Fit] = field(default_factory=dict)
    promised: dict[str, str] = field(default_factory=dict)
    revoked: Revoked = field(default_factory=Revoked)
    refused: set[str] = field(default_factory=set)

    @property
    def standing(self) -> Standing:
        """The package beside what the place has."""
        package, project = self.package, self.project
        newer = tuple(self.newer(version) for version in self.links)
        return Standing(
            kind=package.kind,
            id=package.id,
            dist=package.dist,
            version=package.version,
            question=package.question,
            source=self.place.name if self.place else "",
            listed=self.place is not None and not self.problem and project.known,
            newest=next((n.version for n in newer if self.candidate(n)), ""),
            newer=newer,
            yanked=self._yanked(),
            revoked=self.revoked.reason(package.dist, package.version, digest=package.digest),
            status="" if project.status == "active" else excerpt(project.status, most=40),
            status_reason=excerpt(project.reason, most=300),
            problem=self.problem,
        )

    def candidate(self, newer: Newer) -> bool:
        """Return whether a newer version can be upgraded to."""
        ruled_out = newer.fits is False or (newer.fits is None and self.package.kind == "expert")
        withdrawn = newer.yanked is not None or newer.revoked is not None
        quarantined = self.project.status == "quarantined"
        return not (ruled_out or withdrawn or quarantined or newer.version in self.refused)

    def newer(self, version: str) -> Newer:
        """Return what is known of a newer version by now."""
        link = self.links[version]
        fit = self.fits.get(link.file, Fit(fits=None))
        yanked = None if link.yanked is None else excerpt(link.yanked, most=300)
        return Newer(
            version=version,
            file=link.file,
            sha256=link.sha256 or self.promised.get(link.file, ""),
            fits=fit.fits,
            why=fit.why,
            yanked=yanked,
            revoked=self.revoked.reason(self.package.dist, version, digest=fit.digest),
        )

    def _yanked(self) -> str | None:
        wheels = [
            link
            for link in self.project.links
            if (n := fitting(link.file, self.package.dist)) is not None
            and n == number_of(self.package.version)
        ]
        # A version is yanked if all of its files are.
        reasons = [link.yanked for link in wheels if link.yanked is not None]
        whole = bool(wheels) and len(reasons) == len(wheels)
        return excerpt(reasons[0], most=300) if whole else None


@dataclass(frozen=True, kw_only=True)
class Look:
    """What was seen of all packages in use.

    Attributes:
        offered: What the places have.
        warnings: What is odd about them.
        examine: Fills in which versions of an offer fit; again, after some were refused.
    """

    offered: tuple[Offered, ...]
    warnings: tuple[str, ...]
    examine: Callable[[Offered], None]


def outdated(home: Path, *, place: str | None = None, timeout: float = TIMEOUT) -> Outdated:
    """Compare what is composed with the index that it came from.

    Args:
        home: The state folder.
        place: An index or a folder to ask for everything, instead.
        timeout: How long an index may be silent.

    Raises:
        MissingError: If nothing is composed.
        UsageError: If the place is an address of another kind.
    """
    seen = look(in_use(home), place=place, timeout=timeout, revoked=revoked_in(home))
    return Outdated(
        home=str(home),
        packages=tuple(one.standing for one in seen.offered),
        warnings=seen.warnings,
    )


def look(
    packages: Sequence[InUse],
    *,
    place: str | None = None,
    timeout: float = TIMEOUT,
    most: int = SMALL,
    until_one_fits: bool = False,
    revoked: Revoked | None = None,
) -> Look:
    """Ask the place of each package for newer versions, and see which of them fit.

    Args:
        packages: The packages in use.
        place: The place to ask for all; otherwise the one that the lock records, else the one that
            the user set for pip or uv.
        timeout: How long an index may be silent.
        most: Bytes of the largest wheel that is downloaded to be examined.
        until_one_fits: Examine no older version of a package than the first that fits.
        revoked: What the home knows to be revoked.
    """
    places = _Places(given=place, timeout=timeout)
    awaiting = places.all(packages)
    answers = [_with_one_problem(one) for one in _in_parallel(_ask, awaiting)]
    offered = [replace(one, revoked=revoked or Revoked()) for one in answers]
    warnings = list[str]()
    catalogues = dict[int, dict[str, Version]]()
    for one in offered:
        if one.place is not None and id(one.place) not in catalogues and _needs_fit(one):
            catalogues[id(one.place)] = _entries(one.place, warnings)
    examine = partial(
        _examine, catalogues=catalogues, warnings=warnings, most=most, until_one_fits=until_one_fits
    )
    _in_parallel(examine, offered)
    named = tuple(dict.fromkeys(warnings))
    return Look(offered=tuple(offered), warnings=named, examine=examine)


@dataclass(frozen=True, kw_only=True)
class _Places:
    """The place of each package; each place is made once."""

    given: str | None
    timeout: float
    made: dict[str, Place] = field(default_factory=dict)

    def all(self, packages: Iterable[InUse]) -> list[Offered]:
        found, default = list[Offered](), ""
        missing = self.given is None and any(not p.source for p in packages)
        if missing:
            default = next(set_by_user(), "")
        for package in packages:
            where = self.given or package.source or default
            if not where:
                found.append(Offered(package=package))
                continue
            try:
                place = self.made.get(where) or place_at(where, timeout=self.timeout)
            except RedhostError as e:
                if self.given is not None:
                    raise
                found.append(Offered(package=package, problem=e.reason))
                continue
            found.append(Offered(package=package, place=self.made.setdefault(where, place)))
        return found


def _in_parallel(work: Callable[[T], U], items: Sequence[T]) -> list[U]:
    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(work, items))


def _ask(one: Offered) -> Offered:
    """Ask a place for a package."""
    package, place = one.package, one.place
    if place is None:
        return one
    try:
        project = place.project(package.dist)
    except RedhostError as e:
        return Offered(package=package, place=place, problem=e.reason)
    links = _newer(project.links, package)
    return Offered(package=package, place=place, project=project, links=links)


def _with_one_problem(one: Offered) -> Offered:
    """Let packages of a place that was given up tell the same of it."""
    why = one.place.given_up if one.place is not None and one.problem else ""
    return replace(one, problem=why) if why else one


def _newer(links: Iterable[Link], package: InUse) -> dict[str, Link]:
    """Return the wheels of newer versions that this machine can install, the newest first."""
    current, found = number_of(package.version), dict[Number, Link]()
    for link in links:
        number = fitting(link.file, package.dist)
        if number is None or number <= current:
            continue
        if number in found and link.yanked is not None:  # another file of it is not yanked
            continue
        if not number.is_prerelease or current.is_prerelease:
            found[number] = link
    newest = sorted(found.items(), key=lambda pair: pair[0], reverse=True)[:NEWEST]
    return {str(number): link for number, link in newest}


def _needs_fit(one: Offered) -> bool:
    return bool(one.links) and one.package.kind in {"expert", "backbone"}


def _entries(place: Place, warnings: list[str]) -> dict[str, Version]:
    """Return the entries of a place's catalogue by file name; none if it cannot be read."""
    try:
        catalogue = place.catalogue()
    except RedhostError as e:
        warnings.append(e.reason)
        return {}
    versions = catalogue.versions if catalogue else ()
    return {PurePosixPath(v.file).name: v for v in versions}


def _examine(
    one: Offered,
    *,
    catalogues: Mapping[int, Mapping[str, Version]],
    warnings: list[str],
    most: int,
    until_one_fits: bool,
) -> None:
    """Fill in which newer versions fit."""
    entries, examined = catalogues.get(id(one.place), {}), 0
    for version, link in one.links.items():
        if one.newer(version).revoked is not None:
            continue
        fit = one.fits.get(link.file) or fit_of_python(link)
        if fit is None and one.package.kind == "plugin" and link.metadata and one.place:
            fit = fit_of_metadata(link, one.place)
        if fit is None and _needs_fit(one):
            entry = _matching(entries.get(link.file), link, one, warnings)
            if entry is not None:
                one.promised[link.file] = entry.sha256
                fit = fit_of_entry(entry, one.package.fingerprint)
            elif one.package.kind == "expert":
                examined += 1
                fit = _by_wheel(one, link, most=most if examined <= EXAMINED else 0)
        if fit is not None:
            one.fits[link.file] = fit
        if until_one_fits and fit is not None and fit.fits and one.candidate(one.newer(version)):
            return


def _matching(
    entry: Version | None, link: Link, one: Offered, warnings: list[str]
) -> Version | None:
    """Return what a catalogue says of a file, if it means these bytes."""
    if entry is None or not link.sha256 or entry.sha256 == link.sha256:
        return entry
    name = one.place.name if one.place else ""
    file = excerpt(link.file, most=200)
    warnings.append(f"the catalogue of {name} has another sha256 of {file}: not used")
    return None


def _by_wheel(one: Offered, link: Link, *, most: int) -> Fit:
    backbone = one.package.backbone
    if most == 0 or backbone is None or one.place is None:
        return Fit(fits=None, why="not examined")
    return fit_of_wheel(link, one.place, backbone, most=most)
