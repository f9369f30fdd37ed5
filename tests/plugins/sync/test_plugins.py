"""Plugins that a lock names: held to their digest, with what their code needs, and trusted."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from redhost_sync.dependencies import with_dependencies
from redhost_sync.fetched import Fetched, archive_of, fetch_part
from redhost_sync.install import require_installable
from redhost_sync.locks import Part
from redhost_sync.sources import FolderSource

from redhost.registry.environment.trust import wheel_digest
from redhost.registry.errors import IntegrityError, MissingError, PluginError
from redhost.registry.package.manifest import dumps

CODE = "redhost-sync-example"


@pytest.fixture
def write(draft: Any, tmp_path: Path) -> Any:
    """Return the function that writes a wheel of code into the folder `wheels`."""
    (tmp_path / "wheels").mkdir()

    def make(dist: str, *needs: str, version: str = "0.1.0") -> Path:
        made = type(draft("any"))(dist, {}, version)
        lines = [f"Requires-Dist: {need}\n" for need in needs]
        metadata = f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n{''.join(lines)}"
        wheel = "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        made.members = {
            f"{made.module}/__init__.py": b"",
            f"{made.info}/METADATA": metadata.encode(),
            f"{made.info}/WHEEL": wheel.encode(),
            f"{made.info}/entry_points.txt": f"[redhost.plugins]\nx = {made.module}\n".encode(),
        }
        return made.write(tmp_path / "wheels")

    return make


def fetched(path: Path) -> Fetched:
    digest = wheel_digest(archive_of(path.name, path.read_bytes()))
    part = Part(kind="plugin", id=CODE, dist=CODE, digest=digest)
    return fetch_part(part, [FolderSource(path.parent)])


def test_of_several_builds_the_one_with_the_locks_digest_is_taken(write: Any) -> None:
    wanted = write(CODE, version="0.1.0")
    write(CODE, version="0.2.0")
    assert fetched(wanted).part.version == "0.1.0"
    part = Part(kind="plugin", id=CODE, dist=CODE, digest="0" * 64)
    with pytest.raises(IntegrityError, match="not what the lock names"):
        fetch_part(part, [FolderSource(wanted.parent)])


def test_what_an_installed_plugin_needs_is_looked_for_too(write, tmp_path, monkeypatch) -> None:
    shutil.unpack_archive(write(CODE, "redhost-sync-below>=2"), tmp_path / "site", "zip")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    part = Part(kind="plugin", id=CODE, dist=CODE)
    with pytest.raises(MissingError, match="redhost-sync-below>=2"):
        with_dependencies([], [], present=[part])
    folder = FolderSource(write("redhost-sync-below", version="2.1").parent)
    [one] = with_dependencies([], [folder], present=[part])
    assert (one.part.dist, one.part.version) == ("redhost-sync-below", "2.1")


def test_what_its_code_needs_is_here_or_comes_along(write: Any) -> None:
    one = fetched(write(CODE, "click>=8", "redhost-sync-below>=2", "x; python_version<'3'"))
    source = FolderSource(Path(write("redhost-sync-below", version="1.0")).parent)
    with pytest.raises(MissingError, match="redhost-sync-below>=2"):
        with_dependencies([one], [source])
    write("redhost-sync-below", "redhost-sync-base", version="2.1")
    write("redhost-sync-base")
    complete = with_dependencies([one], [source])
    assert {(x.part.dist, x.part.version) for x in complete} == {
        (CODE, "0.1.0"),
        ("redhost-sync-below", "2.1"),
        ("redhost-sync-base", "0.1.0"),
    }


def test_the_running_host_is_never_replaced(write: Any) -> None:
    one = fetched(write(CODE, "redhost==99"))
    folder = Path(write("redhost", version="99")).parent
    with pytest.raises(MissingError, match="needs redhost==99"):
        with_dependencies([one], [FolderSource(folder)])


def test_a_plugin_that_is_not_trusted_changes_nothing(
    write: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    one = fetched(write(CODE))
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
    with pytest.raises(PluginError, match=f"redhost trust {CODE}"):
        require_installable(one)
    released = tmp_path / "released.json"
    released.write_bytes(dumps({CODE: one.part.digest}))
    monkeypatch.setattr("redhost_sync.install.RELEASED", released)
    require_installable(one)
