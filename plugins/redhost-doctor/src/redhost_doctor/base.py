"""The files of a backbone's base that another distribution has."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from redhost.registry.package.checked import Refused
from redhost.registry.package.manifest import Base
from redhost.registry.package.model_files import folder_of
from redhost.registry.package.readers import MAX_LARGE, read_file
from redhost.registry.package.safetensors_check import sha256_hex
from redhost_doctor.install import AGAIN
from redhost_doctor.origin import origin_of
from redhost_doctor.shell import pip_command


@dataclass(frozen=True, kw_only=True)
class Damage:
    """What is wrong with a base.

    Attributes:
        text: The fault.
        mend: The command that mends it.
    """

    text: str
    mend: str


def damage_of_base(base: Base, *, deep: bool) -> Damage | None:
    """Return what is wrong with a base of the kind ``dist``; None if nothing is.

    Args:
        base: The base.
        deep: Whether every byte is hashed.
    """
    name = base.id.partition("/")[0]
    try:
        folder = folder_of(base)
    except Refused as e:
        mend = pip_command("install", "--no-deps", f"{name}{base.revision}")
        return Damage(text=e.violations[0].reason, mend=mend)
    for file, sha256 in sorted(base.files.items()):
        if not (folder / file).is_file():
            return Damage(text=f"{folder / file} is not there", mend=_again(name))
        if deep and not _has(folder / file, sha256):
            return Damage(text=f"{folder / file} has changed", mend=_again(name))
    return None


def _has(path: Path, sha256: str) -> bool:
    data = read_file(path, missing="base_missing", limit=MAX_LARGE).value
    return data is not None and sha256_hex(data) == sha256


def _again(name: str) -> str:
    """Return the command that installs a distribution once more, as it is."""
    dist = metadata.distribution(name)
    origin = origin_of(Path(str(getattr(dist, "_path", ""))))
    again = f"{name}=={dist.version}"
    if origin.is_there and origin.kind != "editable":
        again = origin.place
    return pip_command("install", *AGAIN, again)
