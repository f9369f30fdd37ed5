"""Obtain the wheel of a package from a source, and check it before anything is installed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from packaging.version import InvalidVersion, Version

from redhost.registry.environment.trust import wheel_digest
from redhost.registry.errors import IntegrityError, MissingError, RedhostError, short
from redhost.registry.package.checked import Refused
from redhost.registry.package.manifest import Base, parse_backbone
from redhost.registry.package.model_files import folder_of
from redhost.registry.package.readers import BackboneFiles, read_backbone
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.wheel.archive import ArchiveError, read_archive
from redhost.registry.wheel.signing import PublicKey, signature_path
from redhost.registry.wheel.wheel import Wheel, open_wheel

from .locks import Part
from .sources import Offer, Source, default_index, read_offer

MOST = 5
"""Most wheels that are tried where the lock has a digest and no version."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A wheel that is what the lock names.

    Attributes:
        part: The package, with its version.
        file: The wheel's file name.
        data: Its bytes.
        source: Where it came from.
        names: Its files.
        wheel: The audited wheel of an expert or backbone.
        base: For a backbone whose model another distribution has: that one, if it is not installed.
    """

    part: Part
    file: str
    data: bytes
    source: str
    names: tuple[str, ...]
    wheel: Wheel | None = None
    base: Fetched | None = None

    @cached_property
    def sha256(self) -> str:
        """The sha256 of the wheel."""
        return sha256_hex(self.data)

    @property
    def tops(self) -> tuple[str, ...]:
        """The names that it brings to the site folder."""
        names = {name.partition("/")[0] for name in self.names}
        return tuple(sorted(name for name in names if not name.endswith(".data")))

    @cached_property
    def backbone(self) -> BackboneFiles:
        """The backbone that it holds."""
        files = {} if self.wheel is None else dict(self.wheel.files)
        if self.base is not None:
            members = archive_of(self.base.file, self.base.data)
            base, (_, _, folder) = self.model, self.model.id.partition("/")
            files |= {n: members.get(f"{folder}/{n}", b"") for n in base.files}
        return read_backbone(files).unwrap(f"backbone package {self.part}")

    @property
    def model(self) -> Base:
        """Where the model of a backbone is."""
        manifest = parse_backbone(self.wheel.files["backbone.json"] if self.wheel else b"")
        return manifest.unwrap(f"backbone package {self.part}").base


def fetch_part(part: Part, sources: Iterable[Source], *, keys: Sequence[PublicKey] = ()) -> Fetched:
    """Obtain a package from the first source that has it.

    Args:
        part: The package.
        sources: The sources, in order; one that fails or lies is passed over if a later one has it.
        keys: If there are any, one of them must have signed an expert.

    Raises:
        MissingError: If no source has a wheel of that version.
        RedhostError: If what it has is not what the lock names.
    """
    known, names, faults = list[str](), list[str](), list[RedhostError]()
    for source in sources:
        names.append(source.name)
        try:
            offers = source.offers(part.dist)
            known += [f"{o.version} in {source.name}" for o in offers]
            if (fetched := _first(part, offers, source, keys=keys)) is not None:
                return fetched
        except RedhostError as e:
            faults.append(e)
    if faults:
        raise faults[0]
    raise MissingError(
        f"no source has a wheel of {part}",
        expected=" or ".join(names),
        found=", ".join(known) or "none of that name",
        hint="Nothing was changed. Name a folder or an index that has it: --from, --index-url.",
    )


def _first(
    part: Part, offers: Sequence[Offer], source: Source, *, keys: Sequence[PublicKey]
) -> Fetched | None:
    """Return the first wheel of a source that is what the lock names; None if it has none."""
    wanted = [o for o in offers if not part.version or o.version == _version(part.version)]
    for n, offer in enumerate(wanted[:MOST]):
        try:
            return _checked(part, offer, source, keys=keys)
        except RedhostError:
            if part.version or n + 1 == len(wanted[:MOST]):
                raise
    return None


def _base(fetched: Fetched, source: Source) -> Fetched | None:
    """Obtain the distribution with a backbone's model, if there is one that is not installed.

    It comes from where the backbone came from, else from pip's index: its files are compared with
    the backbone's digests.
    """
    model = fetched.model
    if model.kind != "dist":
        return None
    with suppress(Refused):  # raised if it is not installed in that version
        folder_of(model)
        return None
    name, version = model.id.partition("/")[0], model.revision.removeprefix("==")
    part = Part(kind="dependency", id=name, dist=name, version=version)
    try:
        return fetch_part(part, [source])
    except MissingError:
        with suppress(RedhostError):  # that the source lacks it says more
            return fetch_part(part, [default_index()])
        raise


def _version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


def _checked(part: Part, offer: Offer, source: Source, *, keys: Sequence[PublicKey]) -> Fetched:
    """Read an offer and compare its content with the lock's."""
    data = read_offer(offer, source, pinned=part.wheel)
    members = archive_of(offer.file, data)
    part = replace(part, version=part.version or str(offer.version))
    fetched = Fetched(
        part=part, file=offer.file, data=data, source=source.name, names=tuple(members)
    )
    if part.kind == "plugin":
        found = wheel_digest({n: d for n, d in members.items() if not n.endswith("/")})
    elif part.kind == "dependency":
        found = part.digest
    else:
        signed = keys if part.kind == "expert" else ()
        wheel = open_bytes(offer.file, data, keys=signed, signature=offer.signature)
        fetched = replace(fetched, wheel=wheel)
        if part.kind == wheel.package.kind == "backbone":
            fetched = replace(fetched, base=_base(fetched, source))
        found = _digest(fetched)
    if found != part.digest:
        raise IntegrityError(
            f"{offer.file} of {source.name} is not what the lock names",
            expected=short(part.digest),
            found=short(found),
            hint="Nothing was changed. Who made the lock has it: 'redhost export-wheels FOLDER'.",
        )
    return fetched


def archive_of(file: str, data: bytes) -> Mapping[str, bytes]:
    """Return the members of a wheel.

    Raises:
        IntegrityError: If it is no archive, or an ambiguous one.
    """
    try:
        return read_archive(data)
    except ArchiveError as e:
        raise e.violations[0].error(f"wheel {file} was refused") from e


def open_bytes(
    file: str, data: bytes, *, keys: Sequence[PublicKey], signature: Callable[[], bytes]
) -> Wheel:
    """Audit the bytes of a wheel that were read, and not its file again.

    Args:
        file: The wheel's file name.
        data: Its bytes.
        keys: If there are any, one of them must have signed it.
        signature: Returns the bytes of its signature; called only with keys.

    Raises:
        RedhostError: The first violation.
    """
    with tempfile.TemporaryDirectory(prefix="redhost-") as folder:
        path = Path(folder, Path(file).name)
        path.write_bytes(data)
        if keys:
            with suppress(RedhostError):  # its absence is reported where it is read
                signature_path(path).write_bytes(signature())
        return open_wheel(path, keys=keys)


def _digest(fetched: Fetched) -> str:
    wheel, part = fetched.wheel, fetched.part
    if wheel is None or wheel.package.kind != part.kind:
        kind = "nothing" if wheel is None else f"the wheel of another kind: {wheel.package.kind}"
        raise IntegrityError(
            f"{fetched.file} of {fetched.source} is not what the lock names",
            expected=part.kind,
            found=kind,
        )
    if part.kind == "backbone":
        return fetched.backbone.digest
    return wheel.expert.unwrap(f"expert package {part}").digest
