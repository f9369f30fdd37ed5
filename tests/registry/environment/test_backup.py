"""An installation that fails leaves every file as it was: bytes, mode and time."""

from __future__ import annotations

import os
from typing import Any

from redhost.registry.environment.installer import EnvironmentBackup


def state(folder: Any) -> dict[str, tuple[bytes, int, int]]:
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    return {
        p.relative_to(folder).as_posix(): (p.read_bytes(), p.stat().st_mode, p.stat().st_mtime_ns)
        for p in files
    }


def test_what_was_changed_added_and_removed_is_as_before(site) -> None:
    folder = site.expert("a")
    [package] = site.experts()
    strange = folder / "strange.txt"  # nobody lists it
    strange.write_bytes(b"mine")
    (folder / "expert.json").chmod(0o640)
    os.utime(folder / "expert.json", ns=(5, 7))
    before = state(site.folder)

    taken = EnvironmentBackup.take(package, folders=[folder, package.info])
    (folder / "expert.json").write_bytes(b"changed")
    (folder / "added.py").write_bytes(b"import os")
    (package.info / "RECORD").unlink()
    strange.unlink()
    assert state(site.folder) != before
    taken.restore()
    assert state(site.folder) == before


def test_of_nothing_installed_nothing_is_left(tmp_path) -> None:
    folder = tmp_path / "new"
    taken = EnvironmentBackup.take(None, folders=[folder])
    folder.mkdir()
    (folder / "file").write_bytes(b"x")
    taken.restore()
    assert not folder.exists()


def test_a_package_whose_record_cannot_be_read_keeps_its_metadata(site) -> None:
    folder = site.expert("a")
    [package] = site.experts()
    (package.info / "RECORD").write_bytes(b"\xff not a record")
    before = state(package.info)
    taken = EnvironmentBackup.take(package, folders=[folder])
    (package.info / "METADATA").write_bytes(b"changed")
    taken.restore()
    assert state(package.info) == before
