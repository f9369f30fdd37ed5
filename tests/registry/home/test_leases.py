"""What a live process holds stays; what a dead one held does not. With real processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from redhost.registry.errors import IntegrityError, StoreError, UnknownNameError
from redhost.registry.home import generations as garbage
from redhost.registry.home.generations import Generations
from redhost.registry.home.locks import Leases
from redhost.testing import fail_at

HOLDER = """
import sys; from pathlib import Path
from redhost.registry.home.generations import Generations
generations = Generations(Path(sys.argv[1]))
with generations.leases.hold(1):
    print("held", flush=True)
    sys.stdin.readline()
    composition = generations.load(1)
    for name in composition.files: generations.file(1, name)
    for digest in composition.members().values(): generations.store.get(digest)
    print("read", flush=True)
"""


@contextlib.contextmanager
def holder(home: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that holds generation 1, and reads all of it when it gets a line."""
    command = [sys.executable, "-c", HOLDER, str(home)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def test_what_a_live_process_holds_stays_and_can_be_read(home: Path, publish: Any) -> None:
    generations = Generations(home)
    for name in "abc":
        publish(name)
    with holder(home) as process:
        purged = generations.gc(1)
        assert purged.generations == (2,)
        assert [(x.generation, x.pid) for x in purged.held] == [(1, process.pid)]
        assert generations.numbers() == (1, 3)
        out, _ = process.communicate("\n")
        assert out == "read\n"
    assert generations.gc(1).generations == (1,)
    assert [*generations.leases.folder.glob("*-*")] == []


def test_control_without_leases_takes_it_from_under_a_live_process(
    home: Path, publish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        publish(name)
    with holder(home) as process:
        monkeypatch.setattr(Leases, "live", lambda self: ())
        assert Generations(home).gc(1).generations == (1,)
        out, err = process.communicate("\n")
        assert out == "" and "unknown generation" in err


@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL")
def test_a_killed_holders_lease_counts_for_nothing(home: Path, publish: Any) -> None:
    for name in "ab":
        publish(name)
    with holder(home) as process:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    leases = Generations(home).leases
    assert len([*leases.folder.glob("*-*")]) == 2
    assert leases.live() == ()
    assert Generations(home).gc(1).generations == (1,)
    assert [*leases.folder.glob("*-*")] == []


def test_two_holders_of_one_generation_count_each(home: Path, publish: Any) -> None:
    publish("a")
    leases = Leases(home)
    with leases.hold(1):
        with leases.hold(1):
            assert len(leases.live()) == 2
        assert len(leases.live()) == 1
    assert leases.live() == ()


def test_what_is_gone_cannot_be_held(home: Path, publish: Any) -> None:
    publish("a")
    with pytest.raises(UnknownNameError, match="generation '7'"), Leases(home).hold(7):
        pass
    assert [p.name for p in Leases(home).folder.glob("*-*")] == []


def test_a_lease_waits_while_garbage_is_collected(home: Path, publish: Any) -> None:
    publish("a")
    code = (
        "import sys; from pathlib import Path; from redhost.registry.home.locks import Leases\n"
        "print('go', flush=True)\n"
        "with Leases(Path(sys.argv[1])).hold(1): pass\n"
    )
    command = [sys.executable, "-c", code, str(home)]
    with Leases(home).gate():
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_an_unreadable_lease_of_a_live_process_stops_gc(home: Path, publish: Any) -> None:
    publish("a")
    publish("b")
    leases = Leases(home)
    with leases.hold(1):
        (path,) = leases.folder.glob("*.json")
        path.write_bytes(b"{")
        with pytest.raises(StoreError, match="cannot read"):
            Generations(home).gc(1)
        assert Generations(home).numbers() == (1, 2)
    assert Generations(home).gc(1).generations == (1,)


def test_a_damaged_generation_to_keep_stops_gc(home: Path, publish: Any) -> None:
    for name in "abc":
        publish(name)
    (home / "generations" / "2" / "composition.json").write_bytes(b"{")
    with pytest.raises(IntegrityError):
        Generations(home).gc(2)
    assert Generations(home).numbers() == (1, 2, 3)


def test_a_dry_run_says_the_same_and_removes_nothing(home: Path, publish: Any) -> None:
    for name in "abc":
        publish(name)
    generations = Generations(home)
    before = sorted(home.rglob("*"))
    report = generations.gc(1, dry_run=True)
    assert sorted(set(home.rglob("*")) - set(before)) == [home / "leases", home / "leases" / "gate"]
    assert report.dry_run and replace(report, dry_run=False) == generations.gc(1)
    assert report.generations == (1, 2) and len(report.digests) == 2 and report.bytes > 0


def test_publishers_and_collectors_never_cross(home: Path) -> None:
    """Two processes publish while this one collects: every generation left has its bytes."""
    code = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from pathlib import Path; from killer import publish\n"
        "for _ in range(15): publish(Path(sys.argv[1]))\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(home)]) for _ in range(2)]
    generations = Generations(home)
    while not generations.folder.is_dir():  # before that there is no home to collect in
        time.sleep(0.01)
    while any(one.poll() is None for one in both):
        generations.gc(2)
        time.sleep(0.01)  # the lock is not fair: who waits looks every 50 ms whether it is free
        for record in generations.history():
            with contextlib.suppress(StoreError, UnknownNameError):
                generations.file(record.number, "router.safetensors")
    assert [one.wait() for one in both] == [0, 0]
    generations.gc(2)
    assert generations.current() == 30 and generations.numbers() == (29, 30)
    needed = {d for c in generations.history() for d in c.members().values()}
    assert generations.store.digests() == needed
    assert garbage.GcReport() == generations.gc(2)


@pytest.mark.parametrize("there", [True, False])
def test_a_full_disk_at_any_step_of_a_lease_holds_nothing_for_ever(
    home: Path, publish: Any, there: bool
) -> None:
    """Whether it is taken or refused, nothing of it stays, and what is freed can be freed."""
    generations = Generations(home)
    refused, step = 0, 0
    for step in range(1, 100):
        publish("a")
        publish("b")
        number = generations.numbers()[0]
        if not there:
            shutil.rmtree(generations.leases.folder, ignore_errors=True)
        with fail_at(at=step) as calls:
            try:
                with generations.leases.hold(number) as lease:
                    assert lease.generation == number
            except StoreError as e:
                assert "no space left" in str(e) or "cannot" in str(e)
                refused += 1
        assert generations.leases.live() == ()
        assert number in generations.gc(1).generations
        assert [*generations.leases.folder.glob("*-*")] == []
        if len(calls) < step:
            break
    assert 3 < step < 99 and refused > 1
