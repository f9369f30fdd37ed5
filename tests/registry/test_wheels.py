from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from redhost.registry.files import ExpertFiles, read_expert
from redhost.registry.violations import Violation
from redhost.registry.wheels import Wheel, read_wheel

INFO = {
    "a-1.dist-info/METADATA": b"Name: red-expert-a\nVersion: 1\n\n",
    "a-1.dist-info/entry_points.txt": b"[redhost.experts]\na = red_expert_a\n",
}


def wheel(folder: Path, members: dict[str, bytes]) -> Path:
    path = folder / "a-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_reads_an_expert_without_installing_it(tmp_path: Path, make_expert: Any) -> None:
    files = make_expert("a")
    members = {f"red_expert_a/{name}": data for name, data in files.items()}
    found = read_wheel(wheel(tmp_path, {**members, "red_expert_a/__init__.py": b"", **INFO}))
    assert isinstance(found, Wheel)
    assert (str(found.package), found.files) == ("red-expert-a 1", files)
    assert isinstance(read_expert(found.files), ExpertFiles)


@pytest.mark.parametrize(
    "members",
    [
        {},
        {**INFO, "../../x": b""},
        {**INFO, "/x": b""},
        {**INFO, "b-1.dist-info/entry_points.txt": b""},
        {**INFO, "a-1.dist-info/entry_points.txt": b"[redhost.experts]\na = x.y\n"},
        {**INFO, "a-1.dist-info/entry_points.txt": b"\xff"},
        {**INFO, "red_expert_a/big": bytes(64 * 2**20 + 1)},
    ],
    ids=["empty", "dots", "absolute", "two", "dotted", "not text", "bomb"],
)
def test_refuses(tmp_path: Path, members: dict[str, bytes]) -> None:
    found = read_wheel(wheel(tmp_path, members))
    assert isinstance(found, Violation)
    assert found.code == "package_files"


def test_refuses_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"PK")
    assert isinstance(read_wheel(tmp_path / "x.whl"), Violation)
    assert isinstance(read_wheel(tmp_path / "y.whl"), Violation)
