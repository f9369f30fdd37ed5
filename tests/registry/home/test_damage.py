"""One flipped bit in any small file of a home: what was meant, or one clear line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redhost.registry.environment import trust
from redhost.registry.errors import LockHeldError, RedhostError, StoreError
from redhost.registry.home.composition import LOCK
from redhost.registry.home.generations import Generations
from redhost.registry.home.locks import WriterLock
from redhost.registry.queries.inventory import take_status
from redhost.registry.queries.settings import disabled_names, set_disabled


def flips(path: Path) -> Iterator[bytes]:
    """Write every variant of a file with one bit flipped; put the file back at the end."""
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        yield bytes(flipped)
    path.write_bytes(data)


def outcomes(path: Path, read: Callable[[], Any]) -> set[Any]:
    """Return what reading gives over all flips; "refused" for one clear line."""
    found = set()
    for _ in flips(path):
        try:
            found.add(read())
        except RedhostError as e:
            assert str(e).isprintable() and e.hint
            found.add("refused")
    return found


def served(generations: Generations) -> Callable[[], int]:
    """Return what tells the number of the generation that would answer."""
    return lambda: generations.load(generations.current() or 0).number


def test_current_names_the_same_generation_or_none(home: Path, publish: Any) -> None:
    for n in range(3):
        publish("a", f"b{n}")
    generations = Generations(home)
    generations.rollback(2)
    assert outcomes(home / "current", served(generations)) == {2, "refused"}
    for _ in flips(home / "current"):
        assert generations.rollback(2).number == 2  # the way out that the line names
        break
    assert generations.current() == 2


def test_a_number_without_a_digest_names_no_generation(home: Path, publish: Any) -> None:
    publish("a")
    (home / "current").write_bytes(b"1\n")
    with pytest.raises(StoreError, match="expected a number and a digest, found '1'"):
        Generations(home).current()


def test_a_damaged_record_is_reported_by_who_loads_it(home: Path, publish: Any) -> None:
    publish("a")
    (home / "generations" / "1" / "composition.json").write_bytes(b"{")
    assert Generations(home).current() == 1


def test_what_is_disabled_stays_so_or_is_refused(home: Path) -> None:
    for name in ("range1", "range5"):
        set_disabled(home, name)
    names = frozenset({"range1", "range5"})
    assert outcomes(home / "disabled.json", lambda: disabled_names(home)) <= {names, "refused"}


def test_a_file_without_a_digest_is_damaged(home: Path) -> None:
    home.mkdir()
    (home / "disabled.json").write_text('{"schema": "redhost.disabled/1", "names": ["range1"]}')
    with pytest.raises(StoreError, match="is damaged: expected a digest, found none"):
        disabled_names(home)


def test_a_lease_holds_the_same_generation_or_stops_gc(home: Path, publish: Any) -> None:
    for n in range(3):
        publish("a", f"b{n}")
    generations = Generations(home)
    with generations.leases.hold(1):
        path = next(generations.leases.folder.glob("*.json"))
        held = outcomes(path, lambda: tuple(x.generation for x in generations.leases.live()))
        assert held <= {(1,), "refused"}


def test_a_waiting_process_reads_the_right_writer_or_none(home: Path) -> None:
    """Whatever the file says, the lock itself is held."""
    own, nobody = f"process {os.getpid()} writing", "another process writing"
    path, other = home / "writer.pid", WriterLock(home)
    with WriterLock(home).hold():
        assert other._holder() == own
        assert outcomes(path, other._holder) <= {own, nobody}
        path.write_bytes(b"4711\n")
        with pytest.raises(LockHeldError, match=nobody), other.hold(timeout=0):
            pass


def test_a_flipped_bit_trusts_nobody_else(tmp_path: Path) -> None:
    agreed = {"redhost-ray": "0" * 64, "redhost-rax": "1" * 64}
    trust._change(agreed, tmp_path)

    def read() -> tuple[tuple[str, str], ...]:
        return tuple(sorted(trust.trusted(folder=tmp_path).items()))

    right = tuple(sorted(agreed.items()))
    assert outcomes(tmp_path / "trust.json", read) <= {right, "refused"}


def test_status_compares_the_lock_with_the_current_generation(home: Path, publish: Any) -> None:
    publish("a")
    publish("b")
    assert take_status(home).lock is None
    lock = (home / LOCK).read_bytes()
    (home / LOCK).write_bytes(lock.replace(b'"seed": 0', b'"seed": 1'))
    assert take_status(home).lock == "other"
    (home / LOCK).write_bytes(lock[:-3])
    assert take_status(home).lock == "unreadable"
    (home / LOCK).write_bytes(lock.replace(b"\n", b"\r\n"))  # git may
    assert take_status(home).lock is None
    (home / LOCK).unlink()
    assert take_status(home).lock == "missing"


def test_gc_removes_nothing_when_current_names_nothing_that_is_there(
    home: Path, publish: Any
) -> None:
    publish("a")
    publish("b")
    (home / "current").write_bytes(b"6\n")
    with pytest.raises(RedhostError):
        Generations(home).gc(1)
    assert Generations(home).numbers() == (1, 2)


def test_no_number_is_used_twice_whatever_gc_removed(home: Path, publish: Any) -> None:
    generations = Generations(home)
    for n in range(4):
        publish("a", f"b{n}")
    generations.rollback(1)
    assert generations.gc(1).generations == (2, 3, 4)
    assert (generations.numbers(), generations.next_number()) == ((1,), 5)
    assert publish("c").number == 5
    generations.rollback(1)
    assert generations.gc(1).generations == (5,)
    assert generations.next_number() == 6
    assert [p.name for p in generations.folder.glob("removed-*")] == ["removed-5"]
    assert [*(generations.folder / "removed-5").iterdir()] == []


FILES_OF_NO_SIZE = """
import resource, sys
from pathlib import Path
from redhost.registry.home.generations import Generations
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
print(Generations(Path(sys.argv[1])).gc(1).bytes)
"""


def test_gc_frees_where_not_a_byte_can_be_written(home: Path, publish: Any) -> None:
    for n in range(3):
        publish("a", f"b{n}")
    Generations(home).rollback(2)
    (home / "lock-is-stale").touch()  # of a writer that was killed: finishing it would write
    run = [sys.executable, "-c", FILES_OF_NO_SIZE, str(home)]
    done = subprocess.run(run, check=False, capture_output=True, text=True)
    assert done.returncode == 1 and "StoreError" in done.stderr  # the lock cannot be finished
    assert Generations(home).numbers() == (2,)
    (home / "lock-is-stale").unlink()
    publish("a", "b4")
    done = subprocess.run(run, check=False, capture_output=True, text=True)
    assert done.returncode == 0 and int(done.stdout) > 0
