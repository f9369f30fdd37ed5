"""From where pip may take a distribution: never by its name alone, unless the name is redhost's."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

from redhost.registry.home.generations import Generations
from redhost.registry.home.questions import homes_with, place_of, root_of
from redhost.registry.package.discover import canonical

EXAMPLE = "red-backbone-tiny"
"""The backbone that is installed where nothing says which one is wanted."""

_OWN = frozenset(("redhost", EXAMPLE, *(f"red-expert-range{n}" for n in range(1, 6))))


def arguments_for(dist: str, version: str = "", *, source: str = "") -> tuple[str, ...]:
    """Return pip's arguments that name a distribution and its source; none if none is known.

    A name that is not redhost's may be anybody's on a public index.

    Args:
        dist: The distribution.
        version: Its version; any when empty.
        source: The index, folder or wheel that it came from, as `place_of` returns it.
    """
    name = f"{dist}=={version}" if version else dist
    if source.startswith(("http://", "https://")):
        return ("--index-url", source, name)
    if source.endswith(".whl") and Path(source).is_file():
        return (source,)
    if source and (Path(source) / canonical(dist) / "index.html").is_file():
        return ("--index-url", Path(source).as_uri(), name)
    if source and not source.endswith(".whl"):
        return ("--no-index", "--find-links", source.removeprefix("file://"), name)
    return (name,) if is_own(dist) else ()


def is_own(dist: str) -> bool:
    """Return whether a name is this project's, or one that redhost itself requires."""
    required = (Requirement(line).name for line in metadata.requires("redhost") or ())
    return canonical(dist) in _OWN | {canonical(name) for name in required}


def source_of(where: Path, dist: str, version: str = "") -> str:
    """Return the index or folder that an expert last came from; empty if none is recorded.

    The path of a wheel is returned only for the version that is in it.
    """
    for home in homes_with(root_of(where)):
        for record in reversed(Generations(home).history()):
            for member in record.experts:
                is_it = bool(member.source) and canonical(member.dist) == canonical(dist)
                if is_it and (member.version == version or not member.source.endswith(".whl")):
                    return place_of(member.source, home)
    return ""


def unknown_source(command: str, dist: str, version: str = "") -> str:
    """Return what to add to a line whose command is empty because no source is known."""
    if command:
        return ""
    name = f"{dist} {version}".rstrip()
    return f"; no source of {name} is known: install it from an index or wheel that you trust"
