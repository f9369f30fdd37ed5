from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import filelock
import pytest

from redhost.registry import atomic
from redhost.registry.errors import (
    IntegrityError,
    LockHeldError,
    MissingError,
    StoreError,
    UnknownNameError,
)
from redhost.registry.home.composition import LOCK, lock_for
from redhost.registry.home.generations import Generations
from redhost.registry.package.manifest import dumps
from redhost.testing.fault_injection import fail_at

KILLER = Path(__file__).parents[1] / "killer.py"


def temporaries(home: Path) -> list[Path]:
    return [*home.rglob(f"{atomic.TEMPORARY}*")]


def test_nothing_is_composed_at_first(home: Path) -> None:
    generations = Generations(home)
    assert (generations.current(), generations.numbers(), generations.history()) == (None, (), [])
    with pytest.raises(MissingError):
        generations.rollback()


def test_publish_numbers_seals_and_points(home: Path, publish: Any) -> None:
    generations = Generations(home)
    assert publish("b", "a") == generations.load(1)
    second = publish("a")
    assert (second.number, second.parent, generations.current()) == (2, 1, 2)
    assert [member.id for member in generations.load(1).experts] == ["a", "b"]
    assert generations.file(2, "router.safetensors") == b"router"
    assert (home / LOCK).read_bytes() == dumps(lock_for(second))
    assert (home / "current").read_text() == f"2 {second.digest}\n"
    assert temporaries(home) == []


def test_publish_needs_the_lock_and_stored_bytes(home: Path, publish: Any) -> None:
    composition = publish("a")
    generations = Generations(home)
    with generations.writer() as writer:
        generations.store.purge(generations.store.digests())
        with pytest.raises(StoreError, match="lacks bytes"):
            generations.publish(composition, {}, writer=writer)
    with pytest.raises(StoreError, match="lock held"):
        generations.publish(composition, {}, writer=writer)


def test_rollback_goes_to_the_parent_not_to_the_number_before(home: Path, publish: Any) -> None:
    generations = Generations(home)
    publish("a")
    publish("b")
    assert generations.rollback().number == 1
    third = publish("c")
    assert (third.number, third.parent) == (3, 1)
    before = (home / "generations" / "1" / "composition.json").read_bytes()
    assert generations.rollback().number == 1
    assert generations.rollback(2).number == 2
    assert (home / LOCK).read_bytes() == dumps(lock_for(generations.load(2)))
    assert (home / "generations" / "1" / "composition.json").read_bytes() == before
    generations.rollback(1)
    with pytest.raises(MissingError, match="first"):
        generations.rollback()
    with pytest.raises(UnknownNameError):
        generations.rollback(9)


@pytest.mark.parametrize("name", ["composition.json", "router.safetensors", "receipt.json"])
@pytest.mark.parametrize("how", [b"", b'{"x":1}', None])
def test_damage_is_noticed(home: Path, publish: Any, name: str, how: bytes | None) -> None:
    publish("a")
    publish("b")
    path = home / "generations" / "1" / name
    path.unlink() if how is None else path.write_bytes(how)
    with pytest.raises((IntegrityError, UnknownNameError)):
        Generations(home).rollback()
    assert Generations(home).current() == 2


def test_a_current_generation_that_is_gone_has_a_next_step(home: Path, publish: Any) -> None:
    publish("a")
    publish("b")
    shutil.rmtree(home / "generations" / "2")
    with pytest.raises(IntegrityError, match=r"current generation is gone.*redhost rollback N"):
        Generations(home).load(2)
    assert [r.number for r in Generations(home).history()] == [1]
    assert Generations(home).rollback(1).number == 1
    with pytest.raises(UnknownNameError):
        Generations(home).load(2)


def test_a_record_changed_in_one_place_is_noticed(home: Path, publish: Any) -> None:
    publish("a")
    path = home / "generations" / "1" / "composition.json"
    path.write_bytes(path.read_bytes().replace(b'"seed": 0', b'"seed": 1'))
    with pytest.raises(IntegrityError):
        Generations(home).load(1)
    assert Generations(home).history() == []


def test_an_unreadable_current_can_be_repaired(home: Path, publish: Any) -> None:
    publish("a")
    (home / "current").write_bytes(b"")
    with pytest.raises(StoreError, match="expected a number"):
        Generations(home).current()
    Generations(home).rollback(1)
    assert Generations(home).current() == 1


def test_gc_keeps_ancestors_and_reuses_no_number(home: Path, publish: Any) -> None:
    generations = Generations(home)
    publish("a")
    publish("b")
    publish("c")
    publish("c", "d")
    generations.rollback(3)
    purged = generations.gc(2)
    assert purged.generations == (1, 4)
    assert generations.numbers() == (2, 3)
    assert len(purged.digests) == 2
    assert {d for c in generations.history() for d in c.members().values()} == (
        generations.store.digests()
    )
    assert publish("e").number == 5


def test_a_second_writer_is_reported_who_holds_the_lock(home: Path, publish: Any) -> None:
    publish("a")
    code = (
        "import sys, time; from pathlib import Path\n"
        "from redhost.registry.home.generations import Generations\n"
        "with Generations(Path(sys.argv[1])).writer():\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        other.stdout.readline()
        with (
            pytest.raises(LockHeldError, match=str(other.pid)),
            Generations(home).writer(timeout=0.05),
        ):
            pass
        threading.Timer(0.2, other.stdin.close).start()
        with Generations(home).writer(timeout=10):  # the other way: one waits
            pass


def test_threads_of_one_process_wait_for_each_other_from_the_first_time_on(
    home: Path, monkeypatch: Any
) -> None:
    made, inside, most = [], [], []

    class Slow(filelock.FileLock):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            made.append(self)
            time.sleep(0.1)  # time enough for the other thread to make one too
            super().__init__(*arguments, **options)

    def write() -> None:
        with generations.writer():
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.1)
            inside.pop()

    monkeypatch.setattr(filelock, "FileLock", Slow)
    generations = Generations(home)
    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1] and len(made) == 1


def test_two_processes_publish_without_losing_any(home: Path) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(KILLER.parent)!r})\n"
        "from pathlib import Path; from killer import publish\n"
        "for _ in range(10): publish(Path(sys.argv[1]))\n"
    )
    both = [subprocess.Popen([sys.executable, "-c", code, str(home)]) for _ in range(2)]
    assert [one.wait(60) for one in both] == [0, 0]
    assert [c.parent for c in Generations(home).history()] == [None, *range(1, 20)]


def kills(*arguments: str) -> dict[str, Any]:
    """Run the killer; a kill is no power cut, so where there is one a disk in memory will do."""
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        command = [sys.executable, str(KILLER), f"{folder}/home", *arguments]
        run = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
class TestKill:
    def test_around_every_write_sync_and_rename_of_every_writer(self) -> None:
        found = kills("steps", "0")
        assert found["kills"] >= 300
        assert found["bad"] == []

    def test_at_random_moments(self) -> None:
        assert kills("random", "120") == {"kills": 120, "bad": []}

    def test_control_that_writes_in_place_is_caught(self) -> None:
        assert kills("steps", "0", "plain")["bad"]


def assert_old_or_done(home: Path, failed: bool, before: int) -> None:
    generations = Generations(home)
    assert generations.current() == (before if failed else before + 1)
    assert generations.numbers() == tuple(range(1, (generations.current() or 0) + 1))
    composition = generations.load(generations.current() or 0)
    assert (home / LOCK).read_bytes() == dumps(lock_for(composition))
    assert temporaries(home) == []


def test_a_full_disk_at_any_step_changes_nothing(home: Path, publish: Any) -> None:
    publish("a")
    step = 0
    for step in range(1, 100):
        before = Generations(home).current() or 0
        with fail_at(at=step) as calls:
            try:
                publish(f"x{step}")
                failed = False
            except StoreError as e:
                failed = True
                assert "no space left" in str(e)
                assert "\n" not in str(e)
        assert_old_or_done(home, failed, before)
        if len(calls) < step:
            break
    assert step > 30


@pytest.mark.parametrize("name", ["write_file", "sync_file", "sync_folder", "replace"])
def test_a_failing_disk_changes_nothing(home: Path, publish: Any, name: str) -> None:
    publish("a")
    with fail_at(name=name), pytest.raises(StoreError):
        publish("b")
    assert_old_or_done(home, True, 1)


def test_a_lock_that_was_checked_out_is_left_alone(home: Path, publish: Any) -> None:
    publish("a")
    publish("b")
    older = dumps(lock_for(Generations(home).load(1)))
    (home / LOCK).write_bytes(older)
    with Generations(home).writer():
        pass
    assert (home / LOCK).read_bytes() == older


def test_store_replaces_a_damaged_copy(home: Path) -> None:
    store, digest = Generations(home).store, "a" * 64
    store.put({"x": b"1"}, digest=digest)
    (store.folder / digest / "x").write_bytes(b"2")
    store.put({"x": b"1"}, digest=digest)
    assert store.get(digest) == {"x": b"1"}
    with pytest.raises(StoreError):
        store.put({"../x": b""}, digest=digest)
    with pytest.raises(StoreError):
        store.get("../" + "a" * 61)
