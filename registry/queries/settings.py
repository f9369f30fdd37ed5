"""User settings: the home, `Settings` from every source, and disabled experts.

A setting comes from the flags, else the lock, else ``pyproject.toml``, else the defaults.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Collection, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from .. import atomic
from ..environment.installed import audit_installed
from ..errors import MissingError, SettingsError, UnknownNameError, short, suggest
from ..home.composition import LOCK, LockFile, read_lock
from ..home.generations import Generations
from ..home.questions import root_of
from ..package.checked import Checked, Violation
from ..package.discover import MANIFESTS, Package, canonical
from ..package.manifest import MAX_BYTES, BackboneManifest, BackboneRef, parse_expert
from ..package.readers import PackageSource, read_backbone_manifest, read_part
from ..wheel.policy import NameOwners


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings; None means that the next source decides.

    Attributes:
        backbone: Id, distribution or module of an installed backbone.
        router: The kind of router; None is the host's default.
        level: How much of the router is retrained.
        seed: The seed of a full retraining.
        tolerance: Accuracy points a domain may lose; None is one point or two gate rows.
        decline: The share of the experts' own texts that may be declined, 0–1; None declines only
            texts that the router sends to no expert.
        prior: The expected shares of the experts: ``cards``, ``uniform``, ``live``, shares, or a
            file.
        device: The device of tensors, e.g. ``cpu`` or ``cuda``; None is the host's choice.
        keys: Files of public keys; a wheel that none of them signed is refused.
    """

    backbone: str | None = None
    router: str | None = None
    level: Literal["zero", "row", "full"] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    tolerance: Annotated[float, Meta(ge=0)] | None = None
    decline: Annotated[float, Meta(ge=0, lt=1)] | None = None
    prior: str | None = None
    device: str | None = None
    keys: tuple[str, ...] | None = None

    def over(self, other: Settings) -> Settings:
        """Return these settings, with None values replaced by those of the other."""
        mine = msgspec.structs.asdict(self)
        return msgspec.structs.replace(other, **{k: v for k, v in mine.items() if v is not None})


DEFAULTS = Settings(level="full", seed=0)

_KEYS = frozenset(Settings.__struct_fields__)
_parsed = lru_cache(maxsize=4)(tomllib.loads)  # a process may run many commands in one project
_PLAN = "expert"
"""The table below ``[tool.redhost]`` that is not a setting: an author's plan (`project`)."""


def parse_share(text: str) -> float:
    """Return a share written as a percentage or a number, e.g. ``5%`` or ``0.05``.

    Raises:
        SettingsError: If it is not a number from 0 to 1, 1 excluded.
    """
    try:
        number = float(text.removesuffix("%").strip()) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = -1
    if not 0 <= number < 1:
        hint = "Write 5% or 0.05."
        raise SettingsError("a share", expected="from 0% up to 100%", found=text, hint=hint)
    return number


def resolve_home(
    flag: Path | None = None,
    *,
    env: Mapping[str, str] = os.environ,
    folder: Path | None = None,
) -> Path:
    """Return the home: the flag, else ``REDHOST_HOME``, else ``.redhost`` in the current folder.

    Raises:
        SettingsError: If it starts with ``~`` and the name of no user.
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
        flags: The settings given on the command line.
        lock: The lock of the home, if there is one.
        project: The project's ``pyproject.toml``; the current folder's when None.

    Raises:
        SettingsError: If ``[tool.redhost]`` has an unknown or invalid setting.
    """
    merged = flags or Settings()
    for source in (_from_lock(lock), _from_project(project or Path("pyproject.toml")), DEFAULTS):
        merged = merged.over(source)
    return merged


def wanted_backbone(home: Path, flag: str | None = None) -> str | None:
    """Return the backbone named by the command line, a home's lock or the project."""
    return load_settings(flags=Settings(backbone=flag), lock=read_lock(home / LOCK)).backbone


def choose_backbone(
    packages: Collection[Package],
    backbone: str | None,
    *,
    named: BackboneRef | None = None,
    table: str = "[tool.redhost]",
) -> Package:
    """Return the backbone to use: the wanted one, the only one installed, or the one named.

    Args:
        packages: All installed backbones.
        backbone: An id, a distribution or a module; None if no setting names one.
        named: The backbone that an expert was made for, see `named_backbone`.
        table: Where the user can configure one, for the message.

    Raises:
        MissingError: If none is installed.
        SettingsError: If several are installed, none is wanted, and none is the one named.
        UnknownNameError: If the wanted one is not among them.
        ContractError: If several have the wanted id (``duplicate_id``).
    """
    if not packages:
        raise MissingError(
            "no backbone is installed", hint="Install one, e.g. 'pip install red-backbone-tiny'."
        )
    packages = _with_files(packages)
    if backbone is None and len(packages) == 1:
        return next(iter(packages))
    read = {package: installed_backbone(package) for package in packages}
    # A package whose manifest cannot be read is identified by its distribution.
    ids = {p: r.value[0].id if r.value else p.dist for p, r in read.items()}
    if backbone is not None:
        chosen = [p for p in packages if canonical(backbone) == canonical(p.dist)]
        chosen = chosen or [p for p, i in ids.items() if backbone in {i, p.module}]
    else:
        prints = {p: r.value[0].fingerprint for p, r in read.items() if r.value and named}
        # Two names of one encoder compute the same: the name that the expert was made for is meant.
        chosen = [
            p for p, x in prints.items() if named == BackboneRef(name=ids[p], fingerprint=x)
        ] or [p for p, x in prints.items() if named and x == named.fingerprint]
    if len(chosen) > 1:  # even if one of them is faulty, the user has to decide
        name = backbone or ids[chosen[0]]
        expected, rivals = f"one package for {name!r}", " and ".join(sorted(map(str, chosen)))
        hint = "Uninstall one, or name a distribution with --backbone."
        violation = Violation("duplicate_id", "id", expected, rivals, hint)
        raise violation.error(f"no backbone {name!r} was chosen")
    if chosen:
        return chosen[0]
    if backbone is None:
        raise SettingsError(
            "several backbones are installed and none is chosen",
            expected=f"{named.name!r} ({short(named.fingerprint)})" if named else "",
            found=", ".join(sorted(f"{name} ({p.dist})" for p, name in ids.items())),
            hint=f'Choose one with --backbone NAME, or backbone = "NAME" in {table}.',
        )
    for package, problem in read.items():  # the wanted one may be a faulty package
        problem.unwrap(f"backbone package {package}")
    raise UnknownNameError("backbone", backbone, ids.values())


def _with_files(packages: Collection[Package]) -> Collection[Package]:
    """Leave out packages that name the folder of another one, which alone has its files."""
    if len({p.folder for p in packages}) == len(packages):
        return packages
    owners = NameOwners()
    return [
        p
        for p in packages
        if p.info is None or not owners.others(p.info.parent, p.module, dist=p.dist)
    ] or packages


def installed_backbone(package: Package) -> Checked[tuple[BackboneManifest, str]]:
    """Read an installed backbone's manifest, with the digest of a package that matches it."""
    read = read_backbone_manifest(package)
    if read.value is not None:
        return read
    # Another package's files may have replaced its own: the audit names that package.
    return Checked(None, (*audit_installed(package), *read.violations))


def named_backbone(source: PackageSource) -> BackboneRef | None:
    """Return the backbone that an expert's manifest names; None if it cannot be read."""
    read = read_part(source, MANIFESTS["expert"], limit=MAX_BYTES)
    manifest = read.then(parse_expert).value
    return None if manifest is None else manifest.backbone


def _from_lock(lock: LockFile | None) -> Settings:
    """Return what the lock pins; settings unknown to this version are ignored."""
    if lock is None:
        return Settings()
    pinned: dict[str, Any] = {k: v for k, v in lock.settings.items() if k in _KEYS}
    pinned |= {"router": lock.router.kind, "seed": lock.router.seed}
    pinned["backbone"] = pinned.get("backbone") or lock.backbone.id
    return _convert(pinned, f"redhost.lock of backbone {lock.backbone.id!r}")


def _from_project(path: Path) -> Settings:
    try:
        table = _parsed(path.read_text("utf-8")).get("tool", {}).get("redhost", {})
    except FileNotFoundError:
        return Settings()
    except (OSError, ValueError, AttributeError) as e:
        raise SettingsError(f"cannot read {path}", found=str(e)) from e
    if isinstance(table, dict):
        table = {key: value for key, value in table.items() if key != _PLAN}
        if isinstance(share := table.get("decline"), str):
            table["decline"] = parse_share(share)
    settings = _convert(table, f"{path} [tool.redhost]")
    if settings.keys is None:
        return settings
    keys = tuple(str(path.parent / key) for key in settings.keys)  # relative to the project
    return msgspec.structs.replace(settings, keys=keys)


def _convert(table: object, where: str) -> Settings:
    if unknown := sorted(table.keys() - _KEYS) if isinstance(table, dict) else []:
        hint = f"{suggest(unknown[0], _KEYS)}Known: {', '.join(sorted(_KEYS))}."
        raise SettingsError(f"{where}: unknown setting {unknown[0]!r}", hint=hint)
    try:
        return msgspec.convert(table, Settings)
    except msgspec.ValidationError as e:
        raise SettingsError(f"{where}: {e}") from e


class _Disabled(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    schema: Literal["redhost.disabled/1"] = "redhost.disabled/1"
    names: tuple[str, ...] = ()


DISABLED = "disabled.json"
"""The file of a home with ids of experts, or distributions where two share an id. All questions
have one: an expert answers one of them."""


def disabled_names(home: Path) -> frozenset[str]:
    """Return the names that are disabled in a home.

    Raises:
        StoreError: If the file is invalid; ignoring it would enable everything.
    """
    hint = "Remove it, then disable again what should be."
    disabled = atomic.read_struct(root_of(home) / DISABLED, _Disabled, hint=hint)
    return frozenset(disabled.names if disabled else ())


def set_disabled(home: Path, name: str, *, to: bool = True) -> bool:
    """Disable an expert, or enable it again; return whether that changed anything."""
    with Generations(home).writer():
        before = disabled_names(home)
        names = before | {name} if to else before - {name}
        if names != before:
            atomic.write_struct(root_of(home) / DISABLED, _Disabled(names=tuple(sorted(names))))
        return names != before
