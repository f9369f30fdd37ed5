"""`make release`: all published files, in dist/, in the layout that pip reads.

    dist/redhost-0.1.0.tar.gz, dist/*.whl   the host's source, and a wheel of every package
    dist/simple/NAME/index.html             an index (PEP 503), each file with its sha256
    dist/*.whl.cdx.json                     what each wheel asks for: see tools/sbom.py
    dist/provenance.intoto.json             what they were built from: see tools/provenance.py
    dist/SHA256SUMS                         of all these, for `sha256sum -c`

`pip install --index-url file:///…/dist/simple red-expert-range3` installs from it; any web server
can serve the folder too. Nothing is built if the tree differs from its commit, or if CHANGELOG.md
has no entry for the version; equal commits give equal bytes. `make index` writes wheels of the tree
as it is, and with `--index` an index of these.

The host's wheel tells the digests of the plugins' wheels, so that it runs these without
`redhost trust`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from provenance import write_provenance
from sbom import write_sboms

from redhost.registry.environment.trust import wheel_digest

__all__ = ["build", "check_release", "describe", "main", "write_digests", "write_index"]
__all__ += ["write_sums"]

DIGESTS = "redhost/registry/environment/released.json"
"""The file of the host's wheel with the digests of the plugins that it is released with."""


def check_release(root: Path) -> None:
    """Refuse a tree that must not be published.

    Raises:
        SystemExit: If files differ from the commit, or CHANGELOG.md has no heading of the version.
    """
    if changed := _git(root, "status", "--porcelain").splitlines():
        raise SystemExit(
            f"{len(changed)} files differ from the commit, {changed[0][3:]} for one: expected a "
            "clean tree. Commit or stash them."
        )
    version = _project(root)["version"]
    headings = re.findall(r"^## (\S+)", (root / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    if version not in headings:
        raise SystemExit(
            f"CHANGELOG.md: expected a heading '## {version}', found {', '.join(headings)}. Write "
            "what users notice."
        )


def build(root: Path, out: Path) -> None:
    """Build the host's source and wheel, and the wheels of the packages in plugins/.

    Args:
        root: The project.
        out: An empty folder.
    """
    time = _git(root, "log", "-1", "--format=%ct").strip()
    env = {**os.environ, "SOURCE_DATE_EPOCH": time}
    packages = sorted(p.parent for p in (root / "plugins").glob("*/pyproject.toml"))
    # The host's wheel is built from its source archive, which shows that the archive is complete.
    for project, kinds in ((root, ()), *((p, ("--wheel",)) for p in packages)):
        command = [sys.executable, "-m", "build", *kinds, "--no-isolation", "--outdir", str(out)]
        subprocess.run([*command, str(project)], env=env, check=True, stdout=subprocess.DEVNULL)
    write_digests(out)


def write_digests(folder: Path) -> None:
    """Write the digests of the plugins' wheels into the host's wheel beside them."""
    digests = {}
    for path in sorted(folder.glob("redhost_*.whl")):
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        digests[path.name.split("-")[0].replace("_", "-")] = wheel_digest(members)
    for host in folder.glob("redhost-*.whl"):
        _replace(host, DIGESTS, (json.dumps(digests, indent=2) + "\n").encode())


def write_index(folder: Path) -> None:
    """Write simple/ next to the archives: one page per project, and one that lists them."""
    pages: dict[str, list[Path]] = defaultdict(list)
    for path in _archives(folder):
        pages[re.sub(r"[-_.]+", "-", path.name.split("-")[0]).lower()].append(path)
    for name, files in pages.items():
        rows = [(f"../../{f.name}#sha256={_sha256(f)}", f.name) for f in files]
        _write_page(folder / "simple" / name, name, rows)
    _write_page(folder / "simple", "Packages", [(f"{name}/", name) for name in sorted(pages)])


def write_pins(folder: Path) -> Path:
    """Write constraints for pip by which our packages are these wheels, and of no index.

    pip gives no index priority: with an index beside PyPI, whoever has our names there is asked.
    The host is named by its wheel: pip refuses the extra of a package that is installed if a
    constraint says where the package is.
    """
    path = folder / "constraints.txt"
    wheels = sorted(set(folder.resolve().glob("*.whl")) - set(folder.resolve().glob("redhost-*")))
    names = (wheel.name.split("-")[0].replace("_", "-") for wheel in wheels)
    lines = (f"{n} @ {wheel.as_uri()}\n" for n, wheel in zip(names, wheels, strict=True))
    path.write_text("".join(lines), "utf-8")
    return path


def describe(root: Path, out: Path, *, builder: str = "") -> None:
    """Write what the archives ask for and come from, and the digests of all.

    Args:
        root: The project.
        out: Where the archives are.
        builder: A URI of whoever vouches for the build.
    """
    time = int(_git(root, "log", "-1", "--format=%ct"))
    files = [*_archives(out), *write_sboms(out, time=time)]
    project = _project(root)
    write_provenance(
        out,
        files,
        url=f"pkg:pypi/{project['name']}@{project['version']}",
        commit=_git(root, "rev-parse", "HEAD").strip(),
        time=time,
        builder=builder,
    )
    write_sums(out)


def write_sums(folder: Path) -> Path:
    """Write SHA256SUMS of the archives and of what describes them, as `sha256sum` does."""
    path = folder / "SHA256SUMS"
    files = sorted([*_archives(folder), *folder.glob("*.json")])
    lines = (f"{_sha256(file)}  {file.name}\n" for file in files)
    path.write_text("".join(lines), "utf-8")
    return path


def main(arguments: Sequence[str] | None = None) -> None:
    """Check, build into a new folder, and replace dist/ by it when all files are there."""
    parser = argparse.ArgumentParser(description="Build everything that is published.")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument(
        "--index", type=Path, help="Only finish a folder's wheels, and write an index of them."
    )
    parser.add_argument("--builder", default="", help="A URI of the service that builds.")
    options = parser.parse_args(arguments)
    if options.index is not None:
        write_digests(options.index)
        write_index(options.index)
        write_pins(options.index)
        return
    root: Path = options.root
    check_release(root)
    out, dist = root / "build/release", root / "dist"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    build(root, out)
    write_index(out)
    describe(root, out, builder=options.builder)
    print((out / "SHA256SUMS").read_text("utf-8"), end="")
    shutil.rmtree(dist, ignore_errors=True)
    out.rename(dist)
    print(f"pip install --index-url {(dist / 'simple').resolve().as_uri()} PACKAGE")


def _replace(wheel: Path, name: str, data: bytes) -> None:
    """Replace a file of a wheel, and its row of RECORD; all else keeps its bytes and dates."""
    sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    row = re.compile(rf"^{re.escape(name)},.*$", re.MULTILINE)
    with zipfile.ZipFile(wheel) as archive:
        members = {info: archive.read(info) for info in archive.infolist()}
    for info, content in members.items():
        if info.filename == name:
            members[info] = data
        elif info.filename.endswith(".dist-info/RECORD"):
            rows = row.sub(f"{name},sha256={sha},{len(data)}", content.decode())
            members[info] = rows.encode()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for info, content in members.items():
            archive.writestr(info, content)


def _project(root: Path) -> dict[str, str]:
    project: dict[str, str] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return project


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True)  # noqa: S607  (whichever git there is)
    return done.stdout


def _archives(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")])


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _write_page(folder: Path, title: str, rows: Sequence[tuple[str, str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    links = "".join(
        f'<a href="{html.escape(to)}">{html.escape(name)}</a><br>\n' for to, name in rows
    )
    head = f"<!DOCTYPE html>\n<html><head><title>{html.escape(title)}</title></head><body>\n"
    (folder / "index.html").write_text(f"{head}{links}</body></html>\n", "utf-8")


if __name__ == "__main__":
    main()
