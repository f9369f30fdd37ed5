"""Download the wheel of a newer version, and audit exactly those bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace
from redhost_sync.fetched import Fetched, archive_of, open_bytes
from redhost_sync.index import MAX_SIGNATURE, signature_of
from redhost_sync.locks import Part

from redhost.registry.errors import ContractError, IntegrityError, RedhostError, short
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.wheel.signing import PublicKey
from redhost.registry.wheel.wheel import Wheel

from .composed import InUse
from .outdated import Offered


@dataclass(frozen=True, kw_only=True)
class Newcomer:
    """A newer version of a member, audited.

    Attributes:
        member: The member that it replaces.
        wheel: Its wheel.
        digest: The digest of its content.
    """

    member: InUse
    wheel: Wheel
    digest: str

    @property
    def version(self) -> str:
        """Its version."""
        return self.wheel.package.version

    @property
    def fetched(self) -> Fetched:
        """The wheel as `redhost_sync` installs it."""
        wheel = self.wheel
        part = Part(
            kind="expert",
            id=self.member.id,
            dist=wheel.package.dist,
            version=wheel.package.version,
            digest=self.digest,
            wheel=wheel.sha256,
            source=wheel.source,
        )
        names = tuple(archive_of(wheel.name, wheel.data))
        return Fetched(
            part=part,
            file=wheel.name,
            data=wheel.data,
            source=wheel.source,
            names=names,
            wheel=wheel,
        )


def fetch_newest(one: Offered, version: str, *, keys: Sequence[PublicKey] = ()) -> Newcomer:
    """Download the newest fitting version of a package, and check it.

    Args:
        one: The package and what its place has.
        version: The version to take.
        keys: If there are any, one of them must have signed it.

    Raises:
        RedhostError: If it cannot be had, or is not what index and catalogue promise.
    """
    link, place = one.links[version], one.place
    if place is None:  # there would be no link
        raise RedhostError(f"no place has {one.package.dist} {version}")
    data = place.read(link)
    for promise, who in ((link.sha256, place.name), (one.promised.get(link.file), "its catalogue")):
        if promise and promise != sha256_hex(data):
            raise IntegrityError(
                f"{link.file} of {place.name} has other bytes than {who} promises",
                expected=short(promise),
                found=short(sha256_hex(data)),
                hint="Nothing was changed. Tell who keeps the index.",
            )
    signature = partial(place.read, signature_of(link), most=MAX_SIGNATURE)
    wheel = open_bytes(link.file, data, keys=keys, signature=signature)
    wheel = replace(wheel, source=place.name)
    return Newcomer(member=one.package, wheel=wheel, digest=_digest(wheel, one.package))


def _digest(wheel: Wheel, member: InUse) -> str:
    """Return the digest of a wheel's expert, which must be a version of that member."""
    files = wheel.expert.unwrap(f"{wheel.package} was not attached")
    question = files.manifest.question or ""
    if (files.manifest.id, question) != (member.id, member.question):
        named = f"{files.manifest.id!r}" + (f" of question {question!r}" if question else "")
        raise ContractError(
            f"{wheel.package} was not attached: it is no version of {member.id!r}",
            expected=f"{member.id!r}" + (f" of {member.question!r}" if member.question else ""),
            found=named,
            hint="Take it by name if you want it: 'redhost add WHEEL'.",
        )
    return files.digest
