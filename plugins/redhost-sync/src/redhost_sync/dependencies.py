"""What the code of a wheel needs: it is here, comes along, or nothing is changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from redhost.registry.errors import MissingError
from redhost.registry.package.discover import canonical, header_lines

from .fetched import Fetched, archive_of, fetch_required
from .sources import FolderSource, Source
from .state import version_of


def with_dependencies(fetched: Sequence[Fetched], sources: Sequence[Source]) -> tuple[Fetched, ...]:
    """Return wheels with those that their code needs and that are not installed, from folders.

    An index is not asked: to choose versions of other projects is the installer's work.

    Raises:
        MissingError: If something is not installed and in no folder.
    """
    bases = [one.base for one in fetched if one.base is not None]
    complete = {canonical(one.part.dist): one for one in (*bases, *fetched)}
    waiting = [one for one in fetched if one.part.kind == "plugin"]
    folders = [source for source in sources if isinstance(source, FolderSource)]
    while waiting:
        one = waiting.pop()
        for requirement in requirements_of(one):
            name = canonical(requirement.name)
            coming = complete[name].part.version if name in complete else None
            if _suits(requirement, coming or version_of(requirement.name)):
                continue
            complete[name] = _fetch(requirement, folders, one)
            waiting.append(complete[name])
    first = ("dependency", "plugin")
    return tuple(sorted(complete.values(), key=lambda x: x.part.kind not in first))


def requirements_of(one: Fetched) -> Iterator[Requirement]:
    """Yield what a wheel requires on this machine, without extras."""
    members = archive_of(one.file, one.data)
    names = (n for n in members if n.endswith(".dist-info/METADATA") and n.count("/") == 1)
    for name in names:
        for key, value in header_lines(members[name].decode("utf-8", "replace")):
            if key == "requires-dist":
                with suppress(InvalidRequirement):
                    requirement = Requirement(value.strip())
                    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                        yield requirement


def _suits(requirement: Requirement, version: str | None) -> bool:
    with suppress(InvalidVersion):
        return version is not None and requirement.specifier.contains(version, prereleases=True)
    return False


def _fetch(requirement: Requirement, folders: Sequence[Source], of: Fetched) -> Fetched:
    # Its own process runs what would be replaced, so redhost never is.
    ours = canonical(requirement.name) == "redhost"
    if not ours and (one := fetch_required(requirement, folders)) is not None:
        return one
    here = version_of(requirement.name)
    raise MissingError(
        f"{of.part} needs {requirement}",
        found="nothing of that name" if here is None else f"{requirement.name} {here}",
        hint=f"Nothing was changed. Install it first: pip install '{requirement}'.",
    )
