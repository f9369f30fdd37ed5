"""What the code of a wheel needs: it is here, comes along, or nothing is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from redhost.registry.errors import MissingError
from redhost.registry.package.discover import canonical, header_lines

from .fetched import Fetched, archive_of, fetch_part
from .locks import Part
from .sources import FolderSource, Source
from .state import version_of


def with_dependencies(
    fetched: Sequence[Fetched], sources: Sequence[Source], *, present: Sequence[Part] = ()
) -> tuple[Fetched, ...]:
    """Return wheels with those that code needs and that are not installed, from folders.

    An index is not asked: to choose versions of other projects is the installer's work.

    Args:
        fetched: The wheels.
        sources: Where others may come from.
        present: Installed plugins, whose code needs something too.

    Raises:
        MissingError: If something is not installed and in no folder.
    """
    bases = [one.base for one in fetched if one.base is not None]
    complete = {canonical(one.part.dist): one for one in (*bases, *fetched)}
    waiting = [(one.part, requirements_of(one)) for one in fetched if one.part.kind == "plugin"]
    waiting += [(part, _required(metadata.requires(part.dist) or ())) for part in present]
    folders = [source for source in sources if isinstance(source, FolderSource)]
    while waiting:
        part, requirements = waiting.pop()
        for requirement in requirements:
            name = canonical(requirement.name)
            coming = complete[name].part.version if name in complete else None
            if _suits(requirement, coming or version_of(requirement.name)):
                continue
            one = complete[name] = _fetch(requirement, folders, part)
            waiting.append((one.part, requirements_of(one)))
    first = ("dependency", "plugin")
    return tuple(sorted(complete.values(), key=lambda x: x.part.kind not in first))


def requirements_of(one: Fetched) -> Iterator[Requirement]:
    """Yield what a wheel requires on this machine, without extras."""
    members = archive_of(one.file, one.data)
    names = (n for n in members if n.endswith(".dist-info/METADATA") and n.count("/") == 1)
    for name in names:
        lines = header_lines(members[name].decode("utf-8", "replace"))
        yield from _required(value.strip() for key, value in lines if key == "requires-dist")


def _required(lines: Iterable[str]) -> Iterator[Requirement]:
    for line in lines:
        with suppress(InvalidRequirement):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                yield requirement


def _suits(requirement: Requirement, version: str | None) -> bool:
    with suppress(InvalidVersion):
        return version is not None and requirement.specifier.contains(version, prereleases=True)
    return False


def _fetch(requirement: Requirement, folders: Sequence[Source], of: Part) -> Fetched:
    # Its own process runs what would be replaced, so redhost never is.
    for folder in folders if canonical(requirement.name) != "redhost" else ():
        for offer in folder.offers(requirement.name):
            if requirement.specifier.contains(str(offer.version), prereleases=True):
                name, version = requirement.name, str(offer.version)
                part = Part(kind="dependency", id=name, dist=name, version=version)
                return fetch_part(part, [folder])
    here = version_of(requirement.name)
    raise MissingError(
        f"{of} needs {requirement}",
        found="nothing of that name" if here is None else f"{requirement.name} {here}",
        hint=f"Nothing was changed. Install it first: pip install '{requirement}'.",
    )
