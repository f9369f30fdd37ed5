"""Kill writers with signal 9 at every step or at random moments, and look at what is left.

Run as a program: ``python killer.py HOME steps|random COUNT [plain]``; prints JSON. Writers are
forked from one process that has imported the registry, so a kill costs milliseconds. ``plain``
replaces the atomic writes by what ``open("w")`` does, truncate and fill: the check must notice, and
when it has, that is all.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from redhost.registry import atomic
from redhost.registry.environment import trust
from redhost.registry.home.composition import (
    LOCK,
    BackboneRecord,
    Composition,
    Member,
    RouterRecord,
    lock_for,
)
from redhost.registry.home.generations import Generations
from redhost.registry.package.manifest import dumps
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.registry.queries.settings import disabled_names, set_disabled
from redhost.testing.fault_injection import Kill, kill_at_every_step, kill_at_random

ROUTER = bytes(200_000)


def publish(home: Path) -> None:
    generations = Generations(home)
    with generations.writer() as writer:
        number = generations.next_number()
        data = f"expert of generation {number}".encode()
        digest = sha256_hex(data)
        generations.store.put({"expert.json": data}, digest=digest)
        draft = Composition(
            backbone=BackboneRecord(id="tiny", fingerprint="f" * 64),
            experts=(Member(id="a", dist="red-a", version="1", digest=digest),),
            router=RouterRecord(kind="k", level="full", digest="", seed=number, columns=("a",)),
        )
        files = {"router.safetensors": ROUTER, "receipt.json": b"{}"}
        generations.publish(draft, files, writer=writer)


def rollback(home: Path) -> None:
    """Go back and forth between the parent and the newest, so that it can be done again."""
    generations = Generations(home)
    numbers, current = generations.numbers(), generations.current()
    generations.rollback(numbers[-2] if current == numbers[-1] else numbers[-1])


def collect(home: Path) -> None:
    """Leave something to collect, then collect it."""
    while len(Generations(home).numbers()) < 4:
        publish(home)
    Generations(home).gc(2)


def disable(home: Path) -> None:
    """Switch an expert off, or on again."""
    set_disabled(home, "a", to="a" not in disabled_names(home))


def hold(home: Path) -> None:
    generations = Generations(home)
    with generations.leases.hold(generations.current() or 0):
        pass


def agree(home: Path) -> None:
    """Trust something, or not any more."""
    folder = home / "config"
    (trust.distrust if trust.trusted(folder=folder) else trust.trust)("filelock", folder=folder)


ACTIONS = (publish, rollback, collect, disable, hold, agree)


def unhealed(home: Path) -> str | None:
    """Return what the next writer of each kind leaves wrong."""
    generations = Generations(home)
    with generations.writer():
        pass
    trust.distrust("nobody", folder=home / "config")
    lock = dumps(lock_for(generations.load(generations.current() or 0)))
    if (home / LOCK).read_bytes() != lock:
        return f"{LOCK} is not that of the current generation"
    generations.gc(2)
    left = [p.name for p in home.rglob(f"{atomic.TEMPORARY}*")]
    left += [p.name for p in generations.leases.folder.glob("*-*")]
    return f"left over: {left}" if left else None


def problem(home: Path) -> str | None:
    """Return what is wrong with a home after a kill: every file is old or new, and whole."""
    generations = Generations(home)
    try:
        disabled_names(home)
        trust.trusted(folder=home / "config")
        if generations.current() not in generations.numbers():
            return f"current is {generations.current()} of {generations.numbers()}"
        for number in generations.numbers():
            composition = generations.load(number)
            for name in composition.files:
                generations.file(number, name)
            for digest in composition.digests():
                if sha256_hex(generations.store.get(digest)["expert.json"]) != digest:
                    return "stored bytes differ"
        return unhealed(home)
    except Exception as e:
        return repr(e)


def checked(home: Path) -> Callable[[], str | None]:
    """Return the check that makes a broken home usable again, so that a bad kill counts once."""

    def check() -> str | None:
        found = problem(home)
        if found is not None:
            shutil.rmtree(home)
            publish(home)
            publish(home)
        return found

    return check


def kills(home: Path, mode: str, count: int) -> Iterator[Kill]:
    if mode == "random":
        yield from kill_at_random(
            lambda: publish(home), checked(home), count=count, longest=0.06, seed=0
        )
        return
    for action in ACTIONS:
        for kill in kill_at_every_step(lambda action=action: action(home), checked(home)):
            yield Kill(f"{action.__name__}, {kill.where}", kill.problem)


def plain_file(path: Path, data: bytes) -> None:
    atomic.make_folder(path.parent)
    atomic.write_file(path, b"")
    atomic.write_file(path, data)


def main() -> None:
    home, mode, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    publish(home)
    publish(home)
    plain = "plain" in sys.argv
    if plain:
        atomic.write_atomic = plain_file
    done = []
    for kill in kills(home, mode, count):
        done.append(kill)
        if plain and kill.problem:
            break
    bad = [f"{kill.where}: {kill.problem}" for kill in done if kill.problem]
    sys.stdout.write(json.dumps({"kills": len(done), "bad": bad}))


if __name__ == "__main__":
    main()
