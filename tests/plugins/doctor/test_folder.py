"""The home as a folder: permissions, space, and what processes leave; broken really, and mended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from redhost_doctor.finding import Subject
from redhost_doctor.folder import check_home

HOLD = """
import sys, time
from pathlib import Path
from redhost.registry.home.locks import Leases, WriterLock

home = Path(sys.argv[2])
with Leases(home).hold(1) if sys.argv[1] == "lease" else WriterLock(home).hold():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def hold(world):
    """Return the function that starts a process which holds a lease, or the writer's lock."""
    started = []

    def start(kind: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLD, kind, str(world.home)], stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize(
    ("path", "mode", "state"),
    [
        ("", 0o500, "warn"),
        ("store", 0o300, "fail"),
        ("current", 0o200, "fail"),
        ("", 0o777, "warn"),
    ],
)
def test_permissions_are_put_right(world, path, mode, state) -> None:
    (world.home / path).chmod(mode)
    try:
        assert "chmod" in world.mended("home", state=state)["mend"]
    finally:
        (world.home / path).chmod(0o700)


@pytest.mark.parametrize(("flag", "mend"), [(os.ST_RDONLY, "remount,rw "), (0, "chattr -R -i ")])
def test_a_home_that_the_system_keeps_as_it_is_cannot_be_written(
    tmp_path, monkeypatch, flag, mend
) -> None:
    """A file system that is mounted to be read: access(2) says so, an administrator's too."""
    (tmp_path / "current").write_text("1")
    [before] = check_home(Subject(home=tmp_path))
    monkeypatch.setattr(os, "access", lambda _, mode: mode != os.W_OK)
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flag))
    [fault] = check_home(Subject(home=tmp_path))
    assert (before.state, fault.state) == ("ok", "fail")
    assert fault.text.startswith("cannot be written, whatever its permissions: ")
    assert mend in fault.mend


def test_a_file_in_the_place_of_the_home_is_moved_away(world) -> None:
    home, unset = world.folder / ".redhost", "unset REDHOST_HOME"
    home.write_text("no folder")
    [fault] = world.doctor("home", before=unset)
    assert fault["state"] == "fail"
    [after] = world.doctor("home", before=f"{unset}; {fault['mend']}")
    assert after["state"] == "ok" and Path(f"{home}.old").is_file()


def test_a_home_that_is_not_there_is_no_fault_if_it_can_be_made(world) -> None:
    below = world.folder / "shut" / "home"
    below.parent.mkdir()
    assert [f["state"] for f in world.doctor(f"home --home {below}")] == ["ok"]
    below.parent.chmod(0o500)
    world.mended(f"home --home {below}")


def test_what_a_killed_process_held_is_removed_and_no_generation(world, hold) -> None:
    process = hold("lease")
    [live] = world.doctor("processes")
    assert live["state"] == "ok" and "1 hold" in live["text"]
    process.kill()
    process.wait()
    world.run("redhost recompose --router centroid --accept && redhost rollback 1")
    (world.home / "store" / ".tmp-1-2").write_text("x")
    fault = world.mended("processes", state="warn")
    assert fault["text"].startswith("1 leases and 1 files")
    assert {p.name for p in (world.home / "generations").iterdir()} == {"1", "2"}


def test_a_lock_that_was_not_finished_is(world) -> None:
    lock = (world.home / "redhost.lock").read_bytes()
    (world.home / "lock-is-stale").write_bytes(b"")
    (world.home / "redhost.lock").write_bytes(b"{}")
    world.mended("processes", state="warn")
    assert (world.home / "redhost.lock").read_bytes() == lock


def test_one_that_writes_is_no_fault(world, hold) -> None:
    hold("writer")
    (world.home / ".tmp-1-2").write_text("x")
    [finding] = world.doctor("processes")
    assert finding["state"] == "ok" and "one is writing" in finding["text"]


def test_a_process_whose_lease_cannot_be_read_is_ended(world, hold) -> None:
    process = hold("lease")
    [lease] = (world.home / "leases").glob("*.json")
    lease.write_text("{}")
    [fault] = world.doctor("processes")
    assert (fault["state"], fault["mend"]) == ("fail", f"kill {process.pid}")
    world.run(fault["mend"])
    assert process.wait(10) == -signal.SIGTERM
    world.mended("processes", state="warn")


@pytest.mark.parametrize("name", ["disabled.json", "trust.json"])
def test_a_damaged_file_of_decisions_is_removed(world, name) -> None:
    config = world.folder / "config"
    config.mkdir(exist_ok=True)
    file = (world.home if name == "disabled.json" else config) / name
    file.write_text("{")
    world.mended("settings")
    assert not file.exists()


def can_mount() -> bool:
    probe = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
    try:
        return subprocess.run(probe, check=False, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.skipif(not can_mount(), reason="cannot mount a tmpfs")
@pytest.mark.parametrize(("size", "state"), [(380, "fail"), (200, "warn")])
def test_a_disk_that_is_nearly_full_is_emptied_of_the_cache(world, size, state) -> None:
    folder, fill = world.folder / "disk", world.folder / "disk/home/cache/filler"
    folder.mkdir()
    script = world.folder / "small"
    script.write_text(
        f"mount -t tmpfs -o size=400m tmpfs {folder} && mkdir -p {fill.parent} && "
        f"head -c {size}M /dev/zero > {fill} && "
        f"redhost doctor space --home {folder}/home | tee before | grep '^space' ; "
        "eval $(sed -n 's/.*mend: //p' before) && "
        f"redhost doctor space --home {folder}/home\n"
    )
    before, after = world.run_mounting(script)
    assert (before.split()[1], after.split()[1]) == (state, "ok")
