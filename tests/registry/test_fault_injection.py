"""A disk that fails at any step of any writer: one clear line, and what was there still is."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redhost.registry import atomic
from redhost.registry.environment import trust
from redhost.registry.environment.status import ValidationCache, ValidationResult
from redhost.registry.errors import RedhostError, StoreError
from redhost.registry.home.composition import LOCK, lock_for
from redhost.registry.home.generations import Generations
from redhost.registry.package.manifest import dumps
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.queries.settings import disabled_names, set_disabled
from redhost.testing.fault_injection import fail_at

FULL_DISK = Path(__file__).with_name("full_disk.py")

Action = Callable[[Path, Any], object]


def rollback(home: Path, publish: Any) -> None:
    generations = Generations(home)
    generations.rollback(1 if generations.current() == 2 else 2)


def collect(home: Path, publish: Any) -> None:
    Generations(home).gc(1)


def replace_damaged(home: Path, publish: Any) -> None:
    store = Generations(home).store
    (store.folder / sha256_hex(b"bytes of a") / "expert.json").write_bytes(b"damaged")
    store.put({"expert.json": b"bytes of a"}, digest=sha256_hex(b"bytes of a"))


def hold(home: Path, publish: Any) -> None:
    with Generations(home).leases.hold(2):
        pass


def heal(home: Path, publish: Any) -> None:
    """What every writer does first: sweep, and finish a lock file that was left stale."""
    (home / ".tmp-1-left").write_bytes(b"half")
    (home / "lock-is-stale").write_bytes(b"")
    (home / LOCK).write_bytes(b"old")
    with Generations(home).writer():
        pass


ACTIONS: dict[str, Action] = {
    "publish": lambda home, publish: publish("a", "b", "c"),
    "rollback": rollback,
    "gc": collect,
    "store over a damaged copy": replace_damaged,
    "hold": hold,
    "heal": heal,
    "disable": lambda home, publish: set_disabled(home, "a"),
    "enable": lambda home, publish: set_disabled(home, "off", to=False),
    "trust": lambda home, publish: trust.trust("redhost-onnx", folder=home / "config"),
    "distrust": lambda home, publish: trust.distrust("was", folder=home / "config"),
    "verdicts": lambda home, publish: remember(home),
}


def remember(home: Path) -> None:
    memory = ValidationCache(home / "cache" / "verdicts.json")
    memory.remember(home, (), ValidationResult(digest="d"))
    memory.save()
    assert ValidationCache(memory.path).recall(home, ()) in {None, ValidationResult(digest="d")}


def prepare(home: Path, publish: Any) -> None:
    publish("a")
    publish("a", "b")
    set_disabled(home, "off")
    config = home / "config"
    trust._change({"was": "1"}, config)


def check(home: Path) -> None:
    """Everything on disk is old or new and whole, and the next writer leaves nothing partial."""
    generations = Generations(home)
    current = generations.load(generations.current() or 0)
    for name in current.files:
        generations.file(current.number, name)
    assert current.digests() <= generations.store.digests()
    disabled_names(home)
    trust.trusted(folder=home / "config")
    ValidationCache(home / "cache" / "verdicts.json")
    with generations.writer(), generations.leases.gate():
        generations.leases.sweep()
    trust.distrust("nobody", folder=home / "config")
    assert (home / LOCK).read_bytes() == dumps(lock_for(current))
    assert generations.leftovers() == ()
    assert [*home.rglob(f"{atomic.TEMPORARY}*")] == []
    for number in generations.numbers():
        composition = generations.load(number)
        assert composition.digests() <= generations.store.digests()
    assert {p.name for p in generations.leases.folder.iterdir()} <= {"gate"}


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults") / "home"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EACCES])
@pytest.mark.parametrize("name", ACTIONS)
def test_a_fault_at_any_step_is_one_line_and_changes_nothing(
    home: Path, publish: Any, name: str, code: int
) -> None:
    prepare(home, publish)
    failed = 0
    for step in range(1, 200):
        before = Generations(home).current()
        with fail_at(at=step, code=code) as calls:
            try:
                ACTIONS[name](home, publish)
            except RedhostError as e:
                failed += 1
                assert str(e).isprintable()
                assert os.strerror(code).lower() in str(e)
                assert str(home) in str(e)
                assert Generations(home).current() == before
        check(home)
        if len(calls) < step:
            break
    else:
        pytest.fail("it never came to its end")
    # What is only a courtesy, a memory or a cleaning up does not fail the command.
    assert failed or name == "verdicts"


def test_control_that_writes_in_place_changes_what_is_current(
    home: Path, publish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain(path: Path, data: bytes) -> None:
        with atomic.reporting(path):
            atomic.write_file(path, data)

    prepare(home, publish)
    monkeypatch.setattr(atomic, "write_atomic", plain)
    monkeypatch.setattr(atomic, "put_back", lambda path, data: None)
    changed = 0
    for step in range(1, 40):
        before = (home / "current").read_bytes()
        try:
            with fail_at(at=step):
                publish("c")
        except StoreError:
            changed += (home / "current").read_bytes() != before
            (home / "current").write_bytes(before)
    assert changed


MOUNT = "mount -t tmpfs -o size={size} tmpfs '{folder}' && exec '{python}' '{program}' '{home}'"


@pytest.fixture
def small_disk(tmp_path: Path) -> Callable[[str], dict[str, Any]]:
    """Run the program on a tmpfs of its own, inside a mount namespace that ends with it."""

    def run(size: str) -> dict[str, Any]:
        folder = tmp_path / "disk"
        folder.mkdir()
        script = MOUNT.format(
            size=size, folder=folder, python=sys.executable, program=FULL_DISK, home=folder / "home"
        )
        done = subprocess.run(
            ["unshare", "-rm", "sh", "-c", script], check=True, capture_output=True, text=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


def no_mounts() -> str:
    """Return why no file system can be mounted here; empty where one can."""
    if sys.platform != "linux":
        return "needs Linux"
    probe = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=64k tmpfs /mnt"]
    try:
        done = subprocess.run(probe, check=False, capture_output=True, text=True)
    except OSError as e:
        return f"no unshare: {e}"
    return done.stderr.strip() if done.returncode else ""


@pytest.mark.skipif(bool(no_mounts()), reason=f"cannot mount a tmpfs: {no_mounts()}")
@pytest.mark.parametrize("size", ["700k", "1m", "1100k"])
def test_a_real_full_disk(small_disk: Callable[[str], dict[str, Any]], size: str) -> None:
    found = small_disk(size)
    assert found["published"] >= 2
    assert "no space left on device" in found["error"]
    assert "what was current before still is" in found["error"]
    assert (found["served"], found["left"], found["problem"]) == (200_000, [], None)
    assert found["refused"] == "No space left on device"
    # A rollback needs a few bytes; without them the old generation stays current.
    full = found["published"]
    if found["rollback"] == "done":
        assert found["current_when_full"] == full - 1
    else:
        assert "no space left" in found["rollback"] and found["current_when_full"] == full
    assert found["freed"] > 200_000 and found["filler"] >= 0
    assert found["numbers"][-1] == full + 1
