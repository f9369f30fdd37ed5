"""Install, uninstall and download with this interpreter's pip, or with uv if there is no pip.

Only audited bytes are installed, from memory, pinned by their sha256. The previous files are backed
up, and restored if anything fails.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import site
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Self
from urllib.parse import unquote, urlsplit

from msgspec import Struct
from msgspec.structs import replace

from ..atomic import read_regular
from ..errors import ContractError, InstallError, IntegrityError, UsageError
from ..package.discover import MAX_METADATA, Package, canonical, discover, require_one
from ..package.readers import MAX_LARGE, read_file
from ..package.safetensors_check import sha256_hex
from ..wheel.policy import NameOwners, is_plain
from ..wheel.signing import PublicKey, signature_path
from ..wheel.wheel import Wheel, open_wheel
from . import python_command
from .installed import audit_installed, files_below, read_record, require_removable

_WHAT_TO_GIVE = "Give the path of a wheel, or a name such as red-expert-range3."


def fetch(
    target: str,
    *,
    index_url: str | None = None,
    find_links: str | None = None,
    keys: Sequence[PublicKey] = (),
) -> Wheel:
    """Audit the wheel that a target names; a name is downloaded into a folder of its own.

    Only the download uses the network; with `find_links` and no `index_url` it does not either.

    Args:
        target: The path of a wheel, or a distribution's name, e.g. ``red-expert-range3==0.1.0``.
        index_url: An index other than the one in pip's own settings.
        find_links: A folder or page of wheels to take it from; no index is queried then.
        keys: If there are any, one of them must have signed the wheel. The signature is stored next
            to the wheel, so a target given by name can only have one in a folder of `find_links`.

    Raises:
        UsageError: If the target is neither.
        InstallError: If there is no wheel of that name.
        RedhostError: If the wheel is refused.
    """
    path = Path(target)
    # Of a name whose place is given no file or folder is meant. (Path's raises if it is too long.)
    there = os.path.exists(target) and not (  # noqa: PTH110
        (index_url or find_links) and path.name == target and path.suffix != ".whl"
    )
    if there and path.is_dir():
        raise UsageError(
            f"cannot add {target}: it is a folder, not a wheel",
            hint=(
                f"Pack it first: 'redhost pack {target}'."
                if (path / "pyproject.toml").is_file()
                else f"Name a wheel in it, or 'redhost add NAME --find-links {target}'."
            )
            + " For a distribution of that name say where it is: --find-links DIR or --index-url "
            "URL.",
        )
    if there and path.is_file():
        return open_wheel(path, keys=keys)
    if path.suffix == ".whl":
        raise UsageError(f"there is no wheel {target}", hint=_WHAT_TO_GIVE)
    _require_plain(target)
    with tempfile.TemporaryDirectory(prefix="redhost-") as folder:
        wheel = _download(target, Path(folder), index_url, find_links)
        signature = signature_path(Path(_without_credentials(find_links or folder), wheel.name))
        return replace(
            open_wheel(wheel, keys=keys, signature=signature),
            source=_without_credentials(index_url or find_links or ""),
        )


def find(dist: str) -> Package | None:
    """Return an installed expert package by its distribution, as it is on disk now.

    Raises:
        IntegrityError: If there are several.
    """
    importlib.invalidate_caches()
    packages = [p for p in discover("expert") if canonical(p.dist) == canonical(dist)]
    require_one(dist, {p.info for p in packages})
    return packages[0] if packages else None


def require_free(package: Package) -> Package | None:
    """Refuse a package whose name, or top-level package, is another's in this environment.

    Returns:
        The installed package of its distribution, if there is one.

    Raises:
        ContractError: Naming whose it is.
        InstallError: If nothing here can install.
    """
    _tool()  # there is one, and it can work
    before = find(package.dist)
    if before is None:
        with suppress(metadata.PackageNotFoundError):
            metadata.distribution(package.dist)  # raises, unless it is here
            raise ContractError(
                f"{package} was not installed: a distribution of that name is here, and is no "
                "expert",
                hint="Do not install it: pip would uninstall that one first.",
            )
    taken = f"{package} was not installed: its top-level package {package.module!r} is taken"
    here = Path(sysconfig.get_path("purelib"))
    if others := NameOwners().others(here, package.module, dist=package.dist):
        hint = "Do not install it beside them: it would overwrite what they brought."
        if all(name.startswith("~") for name in others):  # as pip renames what it replaces
            hint = f"An installation was cut short. Remove {here}{os.sep}~* and try again."
        raise ContractError(taken, found=f"brought by {', '.join(sorted(others))}", hint=hint)
    spec = importlib.util.find_spec(package.module) if before is None else None
    if spec is not None:
        places = [*(spec.submodule_search_locations or ()), spec.origin or "built in"]
        raise ContractError(
            taken,
            found=f"files of no distribution, at {places[0]}",
            hint="If an installation was cut short, remove them and try again.",
        )
    return before


@contextmanager
def installed_from(wheel: Wheel) -> Iterator[None]:
    """Install a wheel before the body runs; uninstall it again if the body raises.

    Args:
        wheel: The audited wheel; exactly these bytes are installed.

    Raises:
        InstallError: If pip fails.
        IntegrityError: If the installed expert differs from the composed one.
    """
    package = wheel.package
    before = require_free(package)
    if before is not None:
        require_removable(before)
    sites = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    sites += [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    # The audited wheel writes only to these folders.
    written = [
        Path(s) / name for s in dict.fromkeys(sites) for name in (package.module, wheel.info)
    ]
    backup = EnvironmentBackup.take(before, folders=written)
    try:
        install_wheels({wheel.name: wheel.data}, problem=f"cannot install {package}")
        _verify(wheel)
        yield
    except BaseException:
        backup.restore()
        importlib.invalidate_caches()
        raise


def uninstall(dist: str) -> None:
    """Uninstall a distribution.

    Raises:
        InstallError: If pip fails.
    """
    tool = _tool()
    yes = [] if tool is not _PIP else ["--yes"]
    hint = f"What is composed is without it already. Try 'pip uninstall {dist}'."
    _run(
        [*tool, "uninstall", *_where(tool), "--quiet", *yes, dist],
        f"cannot uninstall {dist}",
        hint=hint,
    )
    importlib.invalidate_caches()


class EnvironmentBackup(Struct, frozen=True):
    """The state of the environment before an installation.

    Attributes:
        folders: The folders that the installation may write to.
        files: The bytes and status of every file in them, and of all other files of the package
            that was installed.
    """

    folders: tuple[Path, ...]
    files: Mapping[Path, tuple[bytes, os.stat_result]]

    @classmethod
    def take(cls, package: Package | None, *, folders: Iterable[Path]) -> Self:
        """Read the present files into memory; None means that no package was installed."""
        places = tuple(folders)
        paths = {f / name for f in places for name in files_below(f)} | _listed(package)
        files = {p: (p.read_bytes(), p.stat()) for p in sorted(paths) if p.is_file()}
        return cls(places, files)

    def restore(self) -> None:
        """Remove the new files, and restore the previous ones."""
        for folder in self.folders:
            shutil.rmtree(folder, ignore_errors=True)
        for path, (data, status) in self.files.items():
            if path.is_file() and path.read_bytes() == data:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(status.st_mode & 0o7777)
            os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))


def _listed(package: Package | None) -> set[Path]:
    """Return the files of a package: those in its dist-info, and those that RECORD lists."""
    if package is None or package.info is None:
        return set()
    rows = read_record(package.info).value
    plain = {r.path for r in rows or () if is_plain(r.path)}
    info = {package.info / name for name in files_below(package.info)}
    return {package.info.parent / path for path in plain} | info


_PIP = (*python_command("-m", "pip"), "--disable-pip-version-check", "--no-input")


def _tool() -> tuple[str, ...]:
    """Return the command that installs into this environment."""
    if importlib.util.find_spec("pip") is not None:
        _require_legible()
        return _PIP
    if uv := shutil.which("uv"):
        return (uv, "pip")
    raise InstallError(
        "nothing here can install",
        expected="pip or uv",
        found="neither",
        hint="Install one, e.g. 'python -m ensurepip'.",
    )


def _require_legible() -> None:
    """Refuse to start pip if some package's METADATA would block it or make it fail."""
    for dist in metadata.distributions():
        path = Path(str(getattr(dist, "_path", ""))) / "METADATA"
        try:
            read_regular(path, limit=MAX_METADATA).decode("utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue  # an egg, or a distribution inside an archive
        except (OSError, UnicodeDecodeError) as e:
            raise InstallError(
                "pip cannot work here",
                expected=f"METADATA that it can read in {path.parent}",
                found=str(e),
                hint="Remove that folder by hand, then try again.",
            ) from e


def _where(tool: tuple[str, ...]) -> tuple[str, ...]:
    """Return options that bind a tool to this environment, despite settings like ``PIP_TARGET``."""
    return ("--isolated",) if tool is _PIP else ("--no-config", "--python", python_command()[0])


def install_wheels(wheels: Mapping[str, bytes], *, problem: str) -> None:
    """Install wheels from memory, by name and sha256; what they need is not installed.

    Args:
        wheels: File name → audited bytes; exactly these are installed, from a folder of their own.
        problem: What fails if the tool does.

    Raises:
        InstallError: If pip, or uv, fails.
    """
    tool, pinned = _tool(), ""
    with tempfile.TemporaryDirectory(prefix="redhost-") as name:
        for file, data in wheels.items():
            Path(name, file).write_bytes(data)
            pinned += "{}=={} --hash=sha256:{}\n".format(*file.split("-")[:2], sha256_hex(data))
        Path(name, "pinned.txt").write_text(pinned, "utf-8")
        again = ("--force-reinstall", "--no-cache-dir") if tool is _PIP else ("--reinstall",)
        command = (*tool, "install", *_where(tool), "--quiet", "--no-deps", "--no-index", *again)
        only = ("--find-links", name, "--require-hashes", "--requirement", f"{name}/pinned.txt")
        _run([*command, *only], problem)


def _verify(wheel: Wheel) -> None:
    """Compare the files of the installed expert with those that were composed."""
    installed, differences = find(wheel.package.dist), ["no such distribution"]
    if installed is not None and installed.folder is not None:
        differences = [v.reason for v in audit_installed(installed)]
        for name, data in wheel.files.items():
            read = read_file(installed.folder / name, missing="package_files", limit=MAX_LARGE)
            differences += [] if read.value == data else [f"another {name}"]
    if differences:
        raise IntegrityError(
            f"{wheel.package} was taken out again: what was installed is not what was composed",
            expected=f"the files of {wheel.name}",
            found=differences[0],
            hint="Look for another installation of it earlier on Python's path, and remove files "
            "that an installation left when it was cut short.",
        )


def _download(name: str, into: Path, index_url: str | None, find_links: str | None) -> Path:
    options = [
        *("--only-binary", ":all:", "--no-deps", "--quiet", "--dest", str(into)),
        *(("--index-url", index_url) if index_url else ()),
        *(("--find-links", find_links) if find_links else ()),
        *(("--no-index",) if find_links and not index_url else ()),
    ]
    if importlib.util.find_spec("pip") is None:
        raise InstallError(
            f"cannot download {name}",
            found="no pip in this environment",
            hint="Install pip, or give the wheel's path.",
        )
    # A place that was named is the only one: these replace what pip's own settings would add to it.
    named = {"PIP_EXTRA_INDEX_URL": index_url or "", "PIP_FIND_LINKS": str(into)}
    _run(
        [*_PIP, "download", *options, "--", name],
        f"cannot download {name}",
        env=named if index_url or find_links else {},
    )
    if len(wheels := sorted(into.glob("*.whl"))) != 1:
        raise InstallError(f"cannot download {name}", expected="one wheel", found=str(len(wheels)))
    return wheels[0]


def _without_credentials(url: str) -> str:
    """Return the address of an index as a lock may record it, or the path of a folder."""
    parts = urlsplit(url)
    if url and parts.scheme not in {"http", "https"}:
        return str(Path(unquote(parts.path) if parts.scheme == "file" else url).absolute())
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _require_plain(name: str) -> None:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(name)
        plain = not (requirement.url or requirement.extras or requirement.marker)
    except InvalidRequirement:
        plain = False
    if not plain:
        raise UsageError(f"cannot add {name!r}", expected="a wheel or a name", hint=_WHAT_TO_GIVE)


def _run(
    command: list[str],
    problem: str,
    *,
    hint: str = "The environment and the composition are as they were.",
    env: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run a tool, with further variables; if it fails, its last line is reported."""
    try:
        done = subprocess.run(  # noqa: S603  (a list, no shell)
            command,
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # its last line is reported even if it is not valid text
            stdin=subprocess.DEVNULL,
            close_fds=False,  # a lock that is inherited lasts until the tool has ended
            env={**os.environ, **env},
        )
    except OSError as e:
        raise InstallError(problem, found=str(e)) from e
    if done.returncode:
        lines = ((done.stderr or done.stdout).strip() or "no word").splitlines()
        lines += [
            line
            # Warnings say why nothing was found: no answer, or that a named folder is not there.
            for word in ("ERROR", "WARNING: Retrying", *(["WARNING: Location"] if env else []))
            for line in lines
            if line.startswith(word)
        ]
        raise InstallError(problem, found=lines[-1].strip(" .")[:300], hint=hint)
