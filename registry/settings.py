"""What to compose and how: flags, then the lock, then pyproject.toml, then defaults."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from .discover import MANIFESTS, Package, canonical
from .errors import MissingError, SettingsError, UnknownNameError, suggest
from .lock import LockFile
from .manifest import MAX_BYTES, BackboneManifest, parse_backbone
from .sources import reader

__all__ = ["DEFAULTS", "Settings", "choose_backbone", "load_settings", "resolve_home"]


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set; None leaves it to the next source.

    Attributes:
        backbone: Id, distribution or module of an installed backbone.
        router: The kind of router; None is the host's default.
        level: How much of the router is retrained.
        seed: What a full retraining starts from.
        tolerance: Accuracy points a domain may lose; None is one point or two gate rows.
        device: Where tensors live, e.g. ``cpu`` or ``cuda``; None is the host's choice.
        keys: Files of public keys; a wheel that none of them signed is refused.
    """

    backbone: str | None = None
    router: str | None = None
    level: Literal["zero", "row", "full"] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    tolerance: Annotated[float, Meta(ge=0)] | None = None
    device: str | None = None
    keys: tuple[str, ...] | None = None

    def over(self, other: Settings) -> Settings:
        """Return these settings, completed from others where they are None."""
        mine = msgspec.structs.asdict(self)
        return msgspec.structs.replace(other, **{k: v for k, v in mine.items() if v is not None})


DEFAULTS = Settings(level="full", seed=0)

PLAN = "expert"
"""The table below ``[tool.redhost]`` that is no setting: an author's plan (`project`)."""


def resolve_home(
    flag: Path | None = None,
    *,
    env: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Path:
    """Return the home: the flag, else ``REDHOST_HOME``, else ``.redhost`` in the current folder.

    Raises:
        SettingsError: If its ``~`` is nobody's.
    """
    chosen = flag or Path(env.get("REDHOST_HOME") or ".redhost")
    try:
        return (folder or Path.cwd()) / chosen.expanduser()
    except RuntimeError as e:
        raise SettingsError(f"there is no home {chosen}", found=str(e)) from e


def load_settings(
    *,
    flags: Settings | None = None,
    lock: LockFile | None = None,
    project: Path | None = None,
) -> Settings:
    """Merge every source of settings.

    Args:
        flags: What the command line says.
        lock: The lock of the home, if there is one.
        project: The project's ``pyproject.toml``; the current folder's when None.

    Raises:
        SettingsError: If ``[tool.redhost]`` says something that cannot be set.
    """
    sources = (_from_lock(lock), _from_project(project or Path("pyproject.toml")), DEFAULTS)
    merged = flags or Settings()
    for source in sources:
        merged = merged.over(source)
    return merged


def choose_backbone(packages: Collection[Package], wanted: str | None) -> Package:
    """Return the backbone to use: the wanted one, or the only one installed.

    Args:
        packages: What ``discover("backbone")`` found.
        wanted: An id, a distribution or a module; None when no setting says.

    Raises:
        MissingError: If none is installed.
        SettingsError: If several are and none is wanted.
        UnknownNameError: If the wanted one is not among them.
    """
    if not packages:
        raise MissingError(
            "no backbone is installed", hint="Install one, e.g. 'pip install red-backbone-tiny'."
        )
    ids = {package: _backbone_id(package) for package in packages}
    if wanted is not None:
        for package, backbone_id in ids.items():
            if wanted in {backbone_id, package.module} or canonical(wanted) == canonical(
                package.dist
            ):
                return package
        raise UnknownNameError("backbone", wanted, ids.values())
    if len(packages) > 1:
        choices = ", ".join(sorted(f"{name} ({package.dist})" for package, name in ids.items()))
        raise SettingsError(
            "several backbones are installed and none is chosen",
            found=choices,
            hint='Choose one with --backbone NAME, or backbone = "NAME" in [tool.redhost].',
        )
    return next(iter(packages))


def _from_lock(lock: LockFile | None) -> Settings:
    """Take what the lock pins; keys of its settings that are not ours are someone else's."""
    if lock is None:
        return Settings()
    known: dict[str, Any] = {k: v for k, v in lock.settings.items() if k in _KEYS}
    known |= {"router": lock.router.kind, "seed": lock.router.seed}
    known["backbone"] = known.get("backbone") or lock.backbone.id
    return _convert(known, f"redhost.lock of backbone {lock.backbone.id!r}")


def _from_project(path: Path) -> Settings:
    try:
        table = tomllib.loads(path.read_text("utf-8")).get("tool", {}).get("redhost", {})
    except FileNotFoundError:
        return Settings()
    except (OSError, ValueError, AttributeError) as e:
        raise SettingsError(f"cannot read {path}", found=str(e)) from e
    if isinstance(table, dict):
        table = {key: value for key, value in table.items() if key != PLAN}
    found = _convert(table, f"{path} [tool.redhost]")
    keys = None if found.keys is None else tuple(str(path.parent / key) for key in found.keys)
    return msgspec.structs.replace(found, keys=keys)


def _convert(table: object, where: str) -> Settings:
    unknown = sorted(table.keys() - _KEYS) if isinstance(table, dict) else []
    if unknown:
        listed = f"Known: {', '.join(sorted(_KEYS))}."
        hint = f"{suggest(unknown[0], _KEYS)}{listed}"
        raise SettingsError(f"{where}: unknown setting {unknown[0]!r}", hint=hint)
    try:
        return msgspec.convert(table, Settings)
    except msgspec.ValidationError as e:
        raise SettingsError(f"{where}: {e}") from e


def _backbone_id(package: Package) -> str:
    raw = reader(package, limit=MAX_BYTES)(MANIFESTS["backbone"], "package_files")
    manifest = parse_backbone(raw) if isinstance(raw, bytes) else raw
    return manifest.id if isinstance(manifest, BackboneManifest) else package.dist


_KEYS = frozenset(Settings.__struct_fields__)
