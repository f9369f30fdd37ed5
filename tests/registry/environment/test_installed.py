"""The audit of installed packages, where a wheel cannot bring about what is tested."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redhost.registry.environment import status as results
from redhost.registry.environment.installed import (
    audit_installed,
    installed_files,
    installed_wheel,
    read_record,
    require_removable,
)
from redhost.registry.environment.status import ValidationCache, check_packages
from redhost.registry.errors import IntegrityError
from redhost.registry.package.discover import Package, discover
from redhost.registry.wheel import policy
from redhost.registry.wheel.policy import MAX_ROWS


def codes(site: Any) -> list[str]:
    [package] = site.experts()
    return [v.code for v in audit_installed(package)]


def test_what_is_sound_passes_with_its_byte_code(site: Any) -> None:
    folder = site.expert("a")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "__init__.cpython-311.pyc").write_bytes(b"")
    assert codes(site) == []
    assert not any(".pyc" in name for name in installed_files(site.experts()[0]))


@pytest.mark.parametrize("name", ["more.py", "below/more.json", "expert.pyc", ".hidden"])
def test_a_file_that_record_lacks_is_found_wherever_it_is(site: Any, name: str) -> None:
    path = site.expert("a") / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"")
    assert codes(site) == ["record_unlisted"]


def test_a_link_to_a_folder_is_a_file_that_nobody_follows(site: Any, tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (site.expert("a") / "below").symlink_to(tmp_path)
    assert codes(site) == ["record_unlisted"]


def test_a_link_to_a_device_is_refused_without_being_read(site: Any) -> None:
    folder = site.expert("a")
    (folder / "__init__.py").unlink()
    (folder / "__init__.py").symlink_to("/dev/zero")
    [violation] = audit_installed(site.experts()[0])
    assert (violation.code, violation.found) == ("record_missing", "something else")


@pytest.mark.parametrize("record", [None, b"\xff", b"x,sha256=!,1\n", b"x,,many\n", b'"x'])
def test_without_a_record_that_can_be_read_nothing_passes(site: Any, record: bytes | None) -> None:
    site.expert("a")
    path = site.folder / "red_expert_a-0.1.0.dist-info" / "RECORD"
    path.unlink() if record is None else path.write_bytes(record)
    assert codes(site) == ["record_absent" if record is None else "record_row"]
    with pytest.raises(IntegrityError, match="cannot be uninstalled"):
        require_removable(site.experts()[0])


@pytest.mark.parametrize(("more", "found"), [(0, []), (1, ["name_limit"])])
def test_of_a_record_only_so_many_rows_are_looked_at(site: Any, more: int, found: list) -> None:
    """Up to the limit they are, one by one; this one's byte code is that of many interpreters."""
    site.expert("a")
    path = site.folder / "red_expert_a-0.1.0.dist-info" / "RECORD"
    rows = MAX_ROWS - len(path.read_bytes().splitlines()) + more
    with path.open("a") as file:
        file.writelines(f"red_expert_a/__pycache__/{n}.pyc,,\n" for n in range(rows))
    assert [v.code for v in read_record(path.parent).violations] == found
    if more:
        with pytest.raises(IntegrityError, match="cannot be uninstalled: RECORD"):
            require_removable(site.experts()[0])


def test_an_entry_point_may_not_lead_to_somebody_elses_folder(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = site.expert("a")
    (tmp_path / "elsewhere").mkdir()
    folder.rename(tmp_path / "elsewhere" / folder.name)
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    [package] = [p for p in discover("expert") if p.dist == "red-expert-a"]
    assert package.folder == tmp_path / "elsewhere" / folder.name
    assert audit_installed(package)[0].code == "record_missing"


def test_an_editable_installation_has_no_record_to_compare(
    site: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_backbone: Any
) -> None:
    folder = site.expert("a")
    info = site.folder / "red_expert_a-0.1.0.dist-info"
    (info / "direct_url.json").write_text(json.dumps({"url": "", "dir_info": {"editable": True}}))
    [package] = site.experts()
    assert not package.editable and "record_unlisted" not in codes(site)
    (folder / "expert.json").write_bytes((folder / "expert.json").read_bytes() + b"\n")
    assert codes(site) == ["record_digest"]  # it says it is editable, and lies where wheels do

    project = tmp_path / "project"
    project.mkdir()
    folder.rename(project / folder.name)
    monkeypatch.syspath_prepend(str(project))
    packages = [p for p in discover("expert") if p.dist == "red-expert-a"]
    [listing] = check_packages(packages, backbone=make_backbone())
    assert (listing.state, listing.to_json()["editable"]) == ("enabled", True)


def test_a_remembered_result_does_not_outlive_a_new_file_or_distribution(
    site: Any, home: Path, make_backbone: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "UNSETTLED", -(10**12))
    folder = site.expert("a")

    def code() -> str | None:
        memory = ValidationCache(home / "verdicts.json")
        return check_packages(site.experts()[:1], backbone=make_backbone(), cache=memory)[0].code

    assert code() is None
    (folder / "more.py").write_bytes(b"")
    assert code() == "record_unlisted"
    (folder / "more.py").unlink()
    assert code() is None
    time.sleep(0.02)
    site.install("thief", {}, extra_rows="red_expert_a/more.py,,\n")
    assert code() == "taken_top_level"


@pytest.fixture
def claimed(site: Any) -> Callable[[], list[str]]:
    """Return what the audit says of one package beside another that claims the name of a third."""
    site.expert("a")
    site.install("thief", {}, extra_rows="red_expert_b/more.py,,\n")
    return lambda: [v.code for v in audit_installed(site.experts()[0])]


def test_who_brought_a_name_is_read_again_once_the_files_that_say_so_changed(
    site: Any, claimed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "UNSETTLED", -(10**12))
    record = site.folder / "thief-0.1.0.dist-info" / "RECORD"
    times, before = record.stat(), record.read_bytes()
    assert claimed() == claimed() == []
    time.sleep(0.02)
    record.write_bytes(before.replace(b"red_expert_b", b"red_expert_a"))
    os.utime(record, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert claimed() == ["taken_top_level"]
    record.write_bytes(before)
    assert claimed() == []


def test_files_too_young_for_the_clock_to_tell_are_read_each_time(
    site: Any, claimed: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "UNSETTLED", 2**62)
    monkeypatch.setattr(policy, "_file_stamp", lambda prefix, name: (name, 0, 1, 0, 0))
    assert claimed() == []
    record = site.folder / "thief-0.1.0.dist-info" / "RECORD"
    record.write_bytes(record.read_bytes().replace(b"red_expert_b", b"red_expert_a"))
    assert claimed() == ["taken_top_level"]


def test_removing_it_must_touch_nobody_elses_files(site: Any) -> None:
    site.install("mine", {}, extra_rows="")
    site.install("thief", {}, extra_rows="mine/__init__.py,,\n")
    by_dist = {p.dist: p for p in site.experts()}
    require_removable(by_dist["mine"])
    with pytest.raises(IntegrityError, match=r"files of others.*'mine/__init__\.py'"):
        require_removable(by_dist["thief"])


SHA = "a" * 64


@pytest.mark.parametrize(
    ("recorded", "origin"),
    [
        ({"url": "file:///w/a%20b.whl", "archive_info": {"hashes": {"sha256": SHA}}}, "/w/a b.whl"),
        ({"url": "file:///w/a.whl", "archive_info": {}}, "/w/a.whl"),  # as uv writes it
        ({"url": "file:///w/a.whl", "archive_info": {"hashes": {"sha256": "x"}}}, "/w/a.whl"),
        ({"url": "file:///w/a%1b.whl", "archive_info": {}}, ""),  # no line of a terminal
        ({"url": "https://w/a.whl", "archive_info": {"hashes": {"sha256": SHA}}}, ""),
        ({"url": "file:///w/a", "dir_info": {}}, ""),
        ({"url": 7, "archive_info": {}}, ""),
        ([], ""),
        (None, ""),
    ],
)
def test_the_wheel_that_an_installer_was_given_is_known(
    site: Any, recorded: object, origin: str
) -> None:
    site.expert("a")
    [package] = site.experts()
    if recorded is not None:
        (package.info / "direct_url.json").write_text(json.dumps(recorded))
    known = installed_wheel(package, "d")
    assert (known.source, known.digest) == (origin, "d")
    assert known.wheel == (SHA if origin == "/w/a b.whl" else "")
    assert installed_wheel(Package("expert", "a", "1", "", None, False), "d").source == ""
