"""Install wheels all or none, and clean up after an installer that was killed."""

from __future__ import annotations

import importlib
import importlib.util
import shutil
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path

import msgspec

from redhost.registry.environment.installed import require_removable
from redhost.registry.environment.installer import EnvironmentBackup, install_wheels
from redhost.registry.environment.trust import RELEASED, trusted
from redhost.registry.errors import ContractError, IntegrityError, PluginError, short
from redhost.registry.package.discover import canonical, is_editable
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.wheel.policy import NameOwners, parse_record

from .fetched import Fetched
from .journal import Writing
from .state import is_installed, package_of, version_of

_STANDS_IN = "-~.=%0123456789"
"""Characters that pip puts in place of the first of a name, after ``~``, while it replaces it."""


@contextmanager
def installed(fetched: Sequence[Fetched]) -> Iterator[None]:
    """Install wheels before the body runs; if they fail or the body does, all is put back.

    Raises:
        InstallError: If the installer fails.
        IntegrityError: If what is then installed is not what the lock names.
    """
    if not fetched:
        yield
        return
    folders = [site / top for site in _sites() for one in fetched for top in one.tops]
    folders += [info for one in fetched for info in _infos(one.part.dist)]
    backup = EnvironmentBackup.take(None, folders=dict.fromkeys(folders))
    try:
        several = f"{len(fetched)} packages" if len(fetched) > 1 else str(fetched[0].part)
        wheels = {one.file: one.data for one in fetched}
        install_wheels(wheels, problem=f"cannot install {several}")
        importlib.invalidate_caches()
        for one in fetched:
            if not is_installed(one.part):
                raise IntegrityError(
                    f"{one.part} was taken out again",
                    expected="what the lock names",
                    found="other files, installed from the same wheel",
                    hint="Look for another installation of it earlier on Python's path.",
                )
        yield
    except BaseException:
        backup.restore()
        importlib.invalidate_caches()
        raise


def require_installable(one: Fetched) -> None:
    """Refuse a wheel that would overwrite what is not its own, before anything is installed.

    Raises:
        ContractError: Naming whose it is.
        IntegrityError: If the present version cannot be uninstalled safely.
        PluginError: If a plugin is not trusted: its code would not be run.
    """
    part, before = one.part, version_of(one.part.dist)
    if part.kind == "plugin":
        _require_trusted(one)
    if before is not None:
        _require_replaceable(one)
    for top in one.tops:
        if top.endswith(".dist-info"):
            continue
        taken = f"{part} was not installed: its top-level package {top!r} is taken"
        if others := NameOwners().others(_sites()[0], top, dist=part.dist):
            found = f"brought by {', '.join(sorted(others))}"
            raise ContractError(taken, found=found, hint="Uninstall that first.")
        if before is None and (place := _place_of(top)) is not None:
            hint = "Remove them, then try again."
            raise ContractError(taken, found=f"files of no distribution, at {place}", hint=hint)


def _place_of(top: str) -> str | None:
    """Return where files of a name of the site folder are, a module's wherever Python looks."""
    module = top.removesuffix(".py")
    if not module.isidentifier():  # such as scipy.libs, of which find_spec would import scipy
        return next((str(site / top) for site in _sites() if (site / top).exists()), None)
    spec = importlib.util.find_spec(module)
    if spec is None:
        return None
    return next(iter(spec.submodule_search_locations or ()), spec.origin or "built in")


def _require_trusted(one: Fetched) -> None:
    """Refuse a plugin that nothing would be composed with."""
    dist = canonical(one.part.dist)
    released = msgspec.json.decode(RELEASED.read_bytes(), type=dict[str, str])
    if one.part.digest not in {trusted().get(dist), released.get(dist)}:
        raise PluginError(
            f"the lock needs the plugin {one.part}, which is not trusted",
            expected=short(one.part.digest),
            found=short(trusted().get(dist, "")),
            hint=f"Nothing was changed. If you trust its code: 'pip install {dist}' from there, "
            f"'redhost trust {dist}', then 'redhost sync' again.",
        )


def _require_replaceable(one: Fetched) -> None:
    part = one.part
    package = package_of(one.wheel.package.kind, part.dist) if one.wheel else None
    if is_editable(metadata.distribution(part.dist)):
        raise ContractError(
            f"{part} was not installed: {part.dist} is installed from a source tree here",
            hint=f"Uninstall that first: 'pip uninstall {part.dist}'.",
        )
    if one.wheel is not None and package is None:
        raise ContractError(
            f"{part} was not installed: a distribution of that name is here, and is no {part.kind}",
            hint="Uninstall it first.",
        )
    if package is not None:
        require_removable(package)


def clean(writing: Sequence[Writing]) -> tuple[str, ...]:
    """Remove what a killed installer left of distributions that are not whole.

    Only names are removed that were written down before the installer started.

    Returns:
        The distributions that were cleaned up.
    """
    cleaned = []
    for one in writing:
        left = [path for site in _sites() for path in _left_of(one, site)]
        if not left and _is_whole(one):
            continue
        paths = {*left, *_infos(one.dist), *(s / top for s in _sites() for top in one.tops)}
        for path in sorted(path for path in paths if path.exists()):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        cleaned.append(one.dist)
    importlib.invalidate_caches()
    return tuple(cleaned)


def _is_whole(one: Writing) -> bool:
    """Return whether a distribution is absent, or has every file that its RECORD lists."""
    infos = _infos(one.dist)
    if not infos:
        modules = [top for top in one.tops if not top.endswith(".dist-info")]
        return not any((site / top).exists() for site in _sites() for top in modules)
    if len(infos) > 1:
        return False
    with suppress(OSError):
        rows = parse_record((infos[0] / "RECORD").read_bytes()).value
        site = infos[0].parent
        return rows is not None and all(
            sha256_hex((site / row.path).read_bytes()) == row.sha256 for row in rows if row.sha256
        )
    return False


def _left_of(one: Writing, site: Path) -> Iterator[Path]:
    """Yield what pip moved away to replace it, and had no time to remove."""
    names = {*one.tops, *(info.name for info in _infos(one.dist))}
    stems = {canonical(name.partition("-")[0]) for name in names}
    for path in site.glob("~*"):
        rest = path.name.lstrip(_STANDS_IN)
        stem = canonical(rest.partition("-")[0])
        if stem and any(known.endswith(stem) and len(known) - len(stem) < _MOST for known in stems):
            yield path


_MOST = 4
"""pip replaces as few characters as it can, the first one as a rule."""


def _infos(dist: str) -> list[Path]:
    """Return the metadata folders of a distribution in the folders that are written to."""
    name = canonical(dist)
    found = (info for site in _sites() for info in sorted(site.glob("[!~]*.dist-info")))
    return [info for info in found if canonical(info.name.partition("-")[0]) == name]


def _sites() -> list[Path]:
    paths = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    return [Path(path) for path in dict.fromkeys(paths)]
