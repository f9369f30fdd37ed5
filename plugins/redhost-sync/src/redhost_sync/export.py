"""`export-wheels`: a folder that rebuilds a project without a network."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from msgspec import Struct
from packaging.requirements import InvalidRequirement, Requirement

from redhost.registry.atomic import make_folder, reporting, write_atomic
from redhost.registry.errors import MissingError, RedhostError, short
from redhost.registry.home.composition import LockFile
from redhost.registry.home.generations import Generations
from redhost.registry.home.questions import root_of
from redhost.registry.package.discover import canonical
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.wheel.signing import signature_path

from .fetched import fetch_part
from .locks import Part, parts_of, read_locks, refuse_revoked
from .manifest import WheelEntry, WheelList, write_list
from .repack import repack
from .sources import FolderSource, Source, source_at

OURS = ("redhost", "redhost-sync")
"""What a folder has beside the packages of the locks: the host, and who reads the folder."""


LARGEST = 3
"""How many of the packed distributions are named with their sizes."""


class Exported(Struct, frozen=True, kw_only=True):
    """The result of `export-wheels`.

    Attributes:
        folder: The folder.
        wheels: Its wheels.
        routers: How many routers' weights it has.
        unsigned: Distributions whose wheel was signed and packed anew, with why: a `sync` with keys
            refuses them.
    """

    folder: str
    wheels: tuple[WheelEntry, ...]
    routers: int
    unsigned: dict[str, str]


def export(
    home: Path,
    folder: Path,
    *,
    dependencies: bool = True,
    originals: Source | None = None,
    announce: Callable[[Mapping[str, int]], None] | None = None,
) -> Exported:
    """Write wheels of all that a project's locks need, their list last.

    Args:
        home: The state folder.
        folder: The folder for the wheels; those of an earlier export are replaced.
        dependencies: Whether to write what other projects make and redhost and plugins need.
        originals: Has the wheels that were signed; if None, each is where its lock says.
        announce: Called with the installed bytes of each distribution before anything is written.

    Raises:
        RedhostError: If what is installed is not what the locks name, or cannot be packed.
    """
    locks = read_locks(root_of(home))
    refuse_revoked(root_of(home), locks, to_be="exported")
    parts = {canonical(part.dist): part for part in parts_of(locks)}
    # Who checks a signature there needs the packages for it.
    extra = "sign" if any(part.signer for part in parts.values()) else ""
    names = closure({*OURS, *parts}, dependencies=dependencies, extra=extra)
    if announce is not None:
        announce({dist: _installed_bytes(dist) for dist in sorted(names)})
    with reporting(folder):
        make_folder(folder)
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=folder) as name:
            signed, unsigned = _signed(parts.values(), Path(name), originals)
            entries = tuple(
                _pack(dist, parts.get(dist), signed.get(dist), Path(name), folder)
                for dist in sorted(names)
            )
    routers = _routers(locks, folder)
    wheels = tuple(sorted(entries, key=lambda entry: entry.file))
    write_list(folder, WheelList(wheels=wheels, routers=routers))
    return Exported(folder=str(folder), wheels=wheels, routers=len(routers), unsigned=unsigned)


def closure(dists: Iterable[str], *, dependencies: bool, extra: str = "") -> set[str]:
    """Return distributions with all that they, and an extra of redhost, require here.

    Args:
        dists: The distributions.
        dependencies: Whether to follow packages of other projects.
        extra: The extra.
    """
    found, waiting = set[str](), [(canonical(dist), "") for dist in dists]
    waiting += [("redhost", extra)]
    seen = set[tuple[str, str]]()
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found.add(name)
        required = _required(name, extra)
        # What an index has of ours is not always what is installed here.
        waiting += (r for r in required if dependencies or r[0].startswith("redhost-"))
    return found


def size_line(sizes: Mapping[str, int]) -> str:
    """Return a line on what is about to be packed: torch may have gigabytes of CUDA with it."""
    mib = {dist: size / 2**20 for dist, size in sizes.items()}
    largest = sorted(mib, key=mib.__getitem__, reverse=True)[:LARGEST]
    listed = ", ".join(f"{dist} {mib[dist]:,.1f}" for dist in largest)
    total = f"{len(mib)} distributions of {sum(mib.values()):,.1f} MiB as installed"
    return f"packs {total}, the largest: {listed}"


def _installed_bytes(dist: str) -> int:
    """Return how large a distribution is by its RECORD; 0 if nothing says so."""
    with suppress(metadata.PackageNotFoundError):  # reported when it is packed
        return sum(file.size or 0 for file in metadata.distribution(dist).files or ())
    return 0


def _required(dist: str, extra: str) -> list[tuple[str, str]]:
    required = list[tuple[str, str]]()
    with suppress(metadata.PackageNotFoundError):  # reported when it is packed
        for line in metadata.distribution(dist).requires or ():
            with suppress(InvalidRequirement):
                needs = Requirement(line)
                if needs.marker is None or needs.marker.evaluate({"extra": extra}):
                    required += [(canonical(needs.name), e) for e in ("", *needs.extras)]
    return required


def _signed(
    parts: Iterable[Part], work: Path, originals: Source | None
) -> tuple[dict[str, Path], dict[str, str]]:
    """Obtain the wheels that were signed, as their authors made them.

    Returns:
        By distribution, the wheels with their signatures, and why there is none of the others.
    """
    wheels, reasons = dict[str, Path](), dict[str, str]()
    for part in parts:
        if not part.signer:
            continue
        try:
            wheels[canonical(part.dist)] = _original(part, work, originals)
        except RedhostError as e:
            reasons[part.dist] = e.reason
    return wheels, reasons


def _original(part: Part, work: Path, originals: Source | None) -> Path:
    """Write the wheel that a part was composed from, and its signature.

    Raises:
        RedhostError: If the source has them no more.
    """
    source = originals or source_at(part.source)
    for offer in source.offers(part.dist):
        data = offer.read()
        if sha256_hex(data) == part.wheel:
            (folder := work / "signed").mkdir(exist_ok=True)
            path = folder / offer.file
            path.write_bytes(data)
            signature_path(path).write_bytes(offer.signature())
            return path
    raise MissingError(
        f"{source.name} has no wheel of {part}",
        expected=f"sha256 {short(part.wheel)}",
        found="others or none",
    )


def _pack(
    dist: str, part: Part | None, original: Path | None, work: Path, folder: Path
) -> WheelEntry:
    """Pack a distribution, compare it with the lock, and move it to its place.

    One that was signed is its author's wheel: packed again, it has other bytes.
    """
    packed = repack(dist, work) if original is None else original
    one = Part(kind="dependency", id=dist, dist=dist, version=metadata.version(dist))
    if part is not None:  # packed again, it is no more the wheel that was composed
        one = fetch_part(replace(part, wheel=""), [FolderSource(packed.parent)]).part
    path = folder / packed.name
    signature_path(path).unlink(missing_ok=True)
    if original is not None:
        signature_path(original).replace(signature_path(path))
    packed.replace(path)
    return WheelEntry(
        file=path.name,
        sha256=_sha256(path),
        dist=one.dist,
        version=one.version,
        kind=one.kind,
        digest=one.digest,
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _routers(locks: Mapping[Path, LockFile], folder: Path) -> dict[str, str]:
    """Write the weights of the locks' routers; return their files by digest."""
    routers = dict[str, str]()
    for where, lock in locks.items():
        data = _router(where, lock)
        name = f"router-{lock.router.digest[:16]}.safetensors"
        write_atomic(folder / name, data)
        routers[lock.router.digest] = name
    return routers


def _router(where: Path, lock: LockFile) -> bytes:
    generations = Generations(where)
    for record in reversed(generations.history()):
        if record.router.digest == lock.router.digest:
            return generations.file(record, "router.safetensors")
    raise MissingError(
        f"no generation in {where} has the lock's router",
        expected=short(lock.router.digest),
        hint="Run 'redhost sync' first.",
    )
