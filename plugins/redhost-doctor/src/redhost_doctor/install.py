"""Which command installs a distribution, or puts an installed one back as it was."""

from __future__ import annotations

import shlex
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from redhost.errors import ContractError, IntegrityError, StoreError
from redhost.registry.environment.extras import how_to_install
from redhost.registry.environment.installed import audit_installed, read_record
from redhost.registry.environment.trust import source_tree
from redhost.registry.errors import RedhostError
from redhost.registry.home.store import Store
from redhost.registry.package.discover import MANIFESTS, Kind, Package, canonical, discover
from redhost.registry.package.manifest import parse_backbone, parse_expert
from redhost.registry.package.readers import BackboneFiles, ExpertFiles
from redhost.registry.package.rules import package_digest
from redhost.registry.wheel.archive import read_archive
from redhost_doctor.origin import origin_of
from redhost_doctor.shell import pip_command
from redhost_doctor.source import arguments_for

AGAIN = ("--force-reinstall", "--no-deps")


def install_command(dist: str, version: str = "", *, source: str = "") -> str:
    """Return the command that installs a distribution; empty if no source of it is known.

    A clone has its project, and the folder of redhost's own wheel its wheel; otherwise it comes
    from the source that is recorded.

    Args:
        dist: The distribution.
        version: Its version; any when empty.
        source: The index or folder that it came from; empty if none is recorded.
    """
    tree = source_tree()
    if tree is not None and (project := tree / "plugins" / dist).is_dir():
        return pip_command("install", "--no-deps", "-e", str(project))
    for wheel in _beside_host(dist, version):
        return pip_command("install", *AGAIN, str(wheel))
    named = arguments_for(dist, version, source=source)
    return pip_command("install", "--no-deps", *named) if named else ""


def install_extra(extra: str) -> str:
    """Return the command that installs the plugin ``redhost-EXTRA`` of this redhost."""
    _, _, arguments = how_to_install(extra).partition("pip install ")
    return pip_command("install", *shlex.split(arguments))


def restore_command(
    package: Package,
    *,
    store: Store | None = None,
    digest: str = "",
    name: str = "",
    source: str = "",
) -> str:
    """Return the command that puts an installed package back as it was; empty if there is none.

    Args:
        package: The package.
        store: The store of the home it is composed in.
        digest: The digest of the stored copy of what should be installed.
        name: Its id, for messages.
        source: The index or folder that it came from by name; empty if none is recorded.
    """
    origin = origin_of(package.info)
    if origin.kind == "wheel" and origin.is_there:
        return pip_command("install", *AGAIN, origin.place)
    if store is not None and (command := _copied(package, store, digest, name)):
        return command
    named = arguments_for(package.dist, package.version, source=source)
    return pip_command("install", *AGAIN, *named) if named and origin.kind == "index" else ""


def wheel_with(kind: Kind, dist: str, version: str, *, digest: str) -> Path | None:
    """Return the wheel on this machine that has the package of a digest.

    Looked for where the distribution was installed from, and beside redhost's own wheel.
    """
    origins = [origin_of(p.info) for p in discover(kind) if canonical(p.dist) == canonical(dist)]
    known = [Path(o.place) for o in origins if o.kind == "wheel" and o.is_there]
    for path in (*known, *_beside_host(dist, version)):
        with suppress(OSError, RedhostError):
            for name, raw in read_archive(path.read_bytes()).items():
                if name.count("/") == 1 and name.endswith(f"/{MANIFESTS[kind]}"):
                    parse = parse_backbone if kind == "backbone" else parse_expert
                    manifest = parse(raw).value
                    if manifest is not None and package_digest(raw, manifest) == digest:
                        return path
    return None


def _copied(package: Package, store: Store, digest: str, name: str) -> str:
    """Return the command that copies what is damaged from the stored copy; empty if none helps.

    Only files that the package's RECORD lists are copied: the stored copy of a backbone also has
    those that another distribution brings.
    """
    if package.folder is None or package.info is None:
        return ""
    try:
        stored: ExpertFiles | BackboneFiles
        if package.kind == "expert":
            stored = store.expert(digest, name=name)
        else:
            stored = store.backbone(digest, name=name)
    except (StoreError, IntegrityError, ContractError):
        return ""
    listed = {row.path for row in read_record(package.info).value or ()}
    own = {n: data for n, data in stored.files.items() if f"{package.module}/{n}" in listed}
    if audit_installed(package, read=own):
        return ""
    names = [n for n, data in own.items() if not _is(package.folder / n, data)]
    paths = [str(store.folder / digest / n) for n in sorted(names)]
    return shlex.join(["cp", *paths, str(package.folder)]) if paths else ""


def _is(path: Path, data: bytes) -> bool:
    """Return whether a file has this content."""
    with suppress(OSError):
        return path.read_bytes() == data
    return False


def _beside_host(dist: str, version: str) -> list[Path]:
    """Return the wheels of a distribution in the folder that redhost's own was installed from."""
    host = metadata.distribution("redhost")
    origin = origin_of(Path(str(getattr(host, "_path", ""))))
    if origin.kind != "wheel":
        return []
    pattern = f"{dist.replace('-', '_')}-{version or '*'}-*.whl"
    return sorted(Path(origin.place).parent.glob(pattern))
