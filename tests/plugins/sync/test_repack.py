"""Wheels packed from what is installed: equal bytes each time, and nothing that has changed."""

from __future__ import annotations

import sysconfig
import zipfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from redhost_sync.export import closure, export, size_line
from redhost_sync.repack import repack

import redhost
from redhost.registry.errors import IntegrityError, MissingError
from redhost.registry.wheel.policy import parse_record


def test_equal_files_give_equal_bytes_and_the_record_is_true(tmp_path: Path) -> None:
    first = repack("click", tmp_path).read_bytes()
    path = repack("click", tmp_path)
    assert path.read_bytes() == first and path.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        [record] = [n for n in names if n.endswith(".dist-info/RECORD")]
        rows = parse_record(archive.read(record)).unwrap("click")
        assert {row.path for row in rows} == names
        assert all(len(archive.read(r.path)) == r.size for r in rows if r.sha256)
    assert not any("__pycache__" in n or n.endswith(("INSTALLER", "REQUESTED")) for n in names)


def test_the_size_is_known_before_a_byte_is_written(tmp_path: Path) -> None:
    redhost.Host.open(home := tmp_path / "home", backbone="tiny").recompose()

    class StopError(Exception):
        pass

    seen = dict[str, int]()

    def announce(sizes: Mapping[str, int]) -> None:
        seen.update(sizes)
        raise StopError

    with pytest.raises(StopError):
        export(home, tmp_path / "out", announce=announce)
    assert not (tmp_path / "out").exists()
    assert {"redhost", "redhost-sync", "red-expert-range1", "torch", "numpy"} <= seen.keys()
    site = Path(sysconfig.get_path("purelib"))
    on_disk = sum(p.stat().st_size for p in (site / "numpy").rglob("*") if p.suffix != ".pyc")
    assert on_disk <= seen["numpy"] <= 2 * on_disk  # with its libraries
    assert max(seen, key=seen.__getitem__) == "torch" and seen["torch"] > 2**28


def test_the_line_on_sizes_has_their_sum_and_the_largest_three() -> None:
    line = size_line({"a": 2**20, "b": 5 * 2**30, "c": 2**21, "d": 0})
    assert "4 distributions of 5,123.0 MiB" in line
    assert line.endswith("the largest: b 5,120.0, c 2.0, a 1.0")


def test_scripts_are_left_to_the_installer(tmp_path: Path) -> None:
    """pip is installed with scripts, which its entry points make."""
    with zipfile.ZipFile(repack("pip", tmp_path)) as archive:
        assert not any(".data/" in name for name in archive.namelist())
    assert any("bin/pip" in str(path) for path in metadata.files("pip") or ())


def test_it_installs_again_and_is_the_same(make_venv: Any, tmp_path: Path) -> None:
    """One with compiled code, whose wheel is for this machine alone."""
    wheel, target = repack("msgspec", tmp_path), tmp_path / "target"
    assert "none-any" not in wheel.name
    options = ("--quiet", "--no-index", "--no-deps", "--target", str(target), str(wheel))
    assert make_venv(tmp_path / "venv").pip("install", *options).returncode == 0
    files = [path for path in metadata.files("msgspec") or () if path.parts[0] == "msgspec"]
    files = [path for path in files if path.suffix != ".pyc"]
    assert len(files) > 5
    assert all((target / path).read_bytes() == path.locate().read_bytes() for path in files)


def test_a_changed_file_is_not_packed(draft: Any, tmp_path: Path, monkeypatch: Any) -> None:
    with zipfile.ZipFile(draft("extra").write(tmp_path)) as archive:
        archive.extractall(tmp_path / "site")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert repack("red-expert-extra", tmp_path).exists()
    card = next((tmp_path / "site" / "red_expert_extra").glob("*card*"))
    card.write_bytes(card.read_bytes() + b"\n")
    with pytest.raises(IntegrityError, match=card.name):
        repack("red-expert-extra", tmp_path)
    (tmp_path / "site" / "red_expert_extra-0.1.0.dist-info" / "RECORD").unlink()
    with pytest.raises(MissingError, match="RECORD"):
        repack("red-expert-extra", tmp_path)


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="nothing-of-this-name"):
        repack("nothing-of-this-name", tmp_path)


def test_the_closure_has_what_redhost_imports() -> None:
    found = closure(["redhost"], dependencies=True)
    assert {"redhost", "torch", "click", "numpy", "jinja2"} - {"numpy"} <= found
    assert "pytest" not in found and "redhost-serve" not in found  # extras are not asked for
    assert closure(["redhost"], dependencies=False) == {"redhost"}
