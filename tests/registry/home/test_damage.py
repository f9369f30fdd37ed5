"""One flipped bit in any small file of a home: what was meant, or one clear line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from redhost.registry.environment import trust
from redhost.registry.errors import LockHeldError, RedhostError
from redhost.registry.home.composition import LOCK
from redhost.registry.home.generations import Generations
from redhost.registry.home.locks import Lease, WriterLock
from redhost.registry.package.manifest import dumps
from redhost.registry.queries.inventory import take_status
from redhost.registry.queries.settings import Disabled


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


def test_the_twin_without_a_digest_serves_another_generation(home: Path, publish: Any) -> None:
    """A home made before: it is read, and its next writer adds the digest."""
    for n in range(3):
        publish("a", f"b{n}")
    generations = Generations(home)
    (home / "current").write_bytes(b"2\n")
    assert generations.current() == 2
    assert {3} < outcomes(home / "current", served(generations))
    assert generations.rollback(2).digest in (home / "current").read_text()


def test_a_damaged_record_is_reported_by_who_loads_it(home: Path, publish: Any) -> None:
    publish("a")
    (home / "generations" / "1" / "composition.json").write_bytes(b"{")
    assert Generations(home).current() == 1


def test_what_is_disabled_stays_so_or_is_refused(home: Path) -> None:
    for name in ("range1", "range5"):
        Disabled(home).disable(name)
    names = frozenset({"range1", "range5"})
    assert outcomes(home / "disabled.json", Disabled(home).names) <= {names, "refused"}


def test_disabled_files_made_before_are_read_and_the_twin_is_not_safe(home: Path) -> None:
    home.mkdir()
    old = {"schema": "redhost.disabled/1", "names": ["range1"]}
    (home / "disabled.json").write_text(json.dumps(old))
    assert Disabled(home).names() == {"range1"}
    assert frozenset({"range3"}) in outcomes(home / "disabled.json", Disabled(home).names)


def test_a_lease_holds_the_same_generation_or_stops_gc(home: Path, publish: Any) -> None:
    for n in range(3):
        publish("a", f"b{n}")
    generations = Generations(home)
    with generations.leases.hold(1):
        path = next(generations.leases.folder.glob("*.json"))
        held = outcomes(path, lambda: tuple(x.generation for x in generations.leases.live()))
        assert held <= {(1,), "refused"}
        old = Lease(generation=1, pid=1, started="2026-01-01T00:00:00+00:00")
        path.write_bytes(dumps(old))  # as it was written before
        assert generations.leases.live() == (old,)


def test_a_waiting_process_reads_the_right_writer_or_none(home: Path) -> None:
    """Whatever the file says, the lock itself is held."""
    own, nobody = f"process {os.getpid()} writing", "another process writing"
    path, other = home / "writer.pid", WriterLock(home)
    with WriterLock(home).hold():
        assert other._holder() == own
        assert outcomes(path, other._holder) <= {own, nobody}
        path.write_bytes(b"4711\n")  # as it was written before
        with pytest.raises(LockHeldError, match=nobody), other.hold(timeout=0):
            pass


def test_a_flipped_bit_trusts_nobody_else(tmp_path: Path) -> None:
    agreed = {"redhost-ray": "0" * 64, "redhost-rax": "1" * 64}
    trust._change(agreed, tmp_path)

    def read() -> tuple[tuple[str, str], ...]:
        return tuple(sorted(trust.trusted(folder=tmp_path).items()))

    right = tuple(sorted(agreed.items()))
    assert outcomes(tmp_path / "trust.json", read) <= {right, "refused"}
    old = {"schema": "redhost.trust/1", "digests": agreed}
    (tmp_path / "trust.json").write_text(json.dumps(old))  # as it was written before
    assert trust.trusted(folder=tmp_path) == agreed
    assert outcomes(tmp_path / "trust.json", read) - {right, "refused"}  # the twin


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


def test_the_highest_number_of_a_home_made_before_counts(home: Path, publish: Any) -> None:
    publish("a")
    (home / "generations" / "highest").write_bytes(b"8\n")
    assert publish("b").number == 9


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
