"""A throw-away environment for tests: real packages in a folder, no pip and no network."""

from __future__ import annotations

import base64
import hashlib
import importlib
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """A site-packages folder that projects are installed into as pip installs wheels.

    Every package gets a real dist-info folder with METADATA, entry points and RECORD. Put the
    folder on ``sys.path``, or use the pytest fixture ``redhost_environment``, which does so.

    Attributes:
        folder: The site-packages folder.
    """

    folder: Path

    def install(self, project: Path, *, code: str | None = None) -> str:
        """Install a project's package; return the distribution's name.

        Args:
            project: A folder with pyproject.toml and one package under src/.
            code: Replaces the content of its ``__init__.py``; code that raises proves that the
                package is never imported.
        """
        table = tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]
        dist, version = str(table["name"]), str(table["version"])
        source = next(p for p in (project / "src").iterdir() if p.is_dir())
        shutil.copytree(source, self.folder / source.name, ignore=shutil.ignore_patterns("*.pyc"))
        if code is not None:
            (self.folder / source.name / "__init__.py").write_text(code, "utf-8")
        groups = table["entry-points"]
        entries = {g: "\n".join(f"{n} = {v}" for n, v in e.items()) for g, e in groups.items()}
        self.write_info(dist, version, source.name, entries)
        return dist

    def install_code(self, dist: str, files: Mapping[str, str], entries: Mapping[str, str]) -> Path:
        """Install a package of code; return its folder.

        Args:
            dist: The distribution's name.
            files: Text by file name.
            entries: The lines of each group of entry points.
        """
        folder = self.package(dist)
        folder.mkdir()
        for name, text in files.items():
            (folder / name).write_text(text, "utf-8")
        self.write_info(dist, "1.0", folder.name, entries)
        return folder

    def write_info(self, dist: str, version: str, module: str, entries: Mapping[str, str]) -> None:
        """Write the dist-info folder of a package whose files are in place."""
        info = self.folder / f"{self.package(dist).name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\nSummary: Made for a test.\n",
            "utf-8",
        )
        text = "".join(f"[{group}]\n{lines}\n" for group, lines in entries.items())
        (info / "entry_points.txt").write_text(text, "utf-8")
        self._write_record(info, self.folder / module)

    def seal(self, dist: str) -> None:
        """Update RECORD to match a package's files, as if its author had built it this way."""
        folder = self.package(dist)
        self._write_record(next(self.folder.glob(f"{folder.name}-*.dist-info")), folder)

    def _write_record(self, info: Path, folder: Path) -> None:
        files = [p for p in (*folder.rglob("*"), *info.iterdir()) if p.is_file()]
        rows = [self._row(p) for p in sorted(files) if p.name != "RECORD"]
        (info / "RECORD").write_text("\n".join([*rows, f"{info.name}/RECORD,,"]) + "\n", "utf-8")
        importlib.invalidate_caches()

    def uninstall(self, dist: str) -> None:
        """Remove a distribution, as pip does."""
        folder = self.package(dist)
        for path in [folder, *self.folder.glob(f"{folder.name}-*.dist-info")]:
            shutil.rmtree(path)
        importlib.invalidate_caches()

    def package(self, dist: str) -> Path:
        """Return the folder of an installed package."""
        return self.folder / dist.replace("-", "_")

    def _row(self, path: Path) -> str:
        data = path.read_bytes()
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        return f"{path.relative_to(self.folder).as_posix()},sha256={digest},{len(data)}"
