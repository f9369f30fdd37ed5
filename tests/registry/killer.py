"""Kill a publisher with signal 9 at every step or at random moments, and look at what is left.

Run as a program: ``python killer.py HOME steps|random COUNT [plain]``; prints JSON. Publishers are
forked from one process that has imported the registry, so a kill costs milliseconds. ``plain``
replaces the atomic writes by what ``open("w")`` does, truncate and fill: the check must notice.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from redhost.registry import atomic
from redhost.registry.composition import BackboneRecord, Composition, Member, RouterRecord, digests
from redhost.registry.generations import Generations
from redhost.registry.integrity import sha256_hex
from redhost.registry.lock import LOCK, derive
from redhost.registry.manifest import dumps

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


def problem(home: Path, before: int) -> str | None:
    """Return what is wrong with a home after a kill: old or new must be current and whole."""
    generations = Generations(home)
    try:
        current = generations.current()
        if current is None or current < before:
            return f"current is {current}, it was {before}"
        composition = generations.load(current)
        for name in composition.files:
            generations.file(current, name)
        for digest in digests(composition):
            if sha256_hex(generations.store.get(digest)["expert.json"]) != digest:
                return "stored bytes differ"
        with generations.writer():
            pass
        left = [p.name for p in home.rglob(f"{atomic.TEMPORARY}*")]
        if left or (home / LOCK).read_bytes() != dumps(derive(composition)):
            return f"not healed: {left or LOCK}"
    except Exception as e:
        return repr(e)
    return None


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(step: int, moment: str) -> None:
    """Make the process die before, within or after its step-th call of a primitive."""
    calls = 0

    def wrap(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def wrapped(*arguments: object) -> None:
            nonlocal calls
            calls += 1
            if calls != step:
                return real(*arguments)
            if moment == "within" and name == "write_file":
                path, data = arguments
                assert isinstance(path, Path)
                assert isinstance(data, bytes)
                path.write_bytes(data[: len(data) // 2])
            elif moment == "after":
                real(*arguments)
            die()
            return None

        return wrapped

    for name in atomic.PRIMITIVES:
        setattr(atomic, name, wrap(name, getattr(atomic, name)))


def plain_file(path: Path, data: bytes) -> None:
    atomic.make_folder(path.parent)
    atomic.write_file(path, b"")
    atomic.write_file(path, data)


def fork(body: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            body()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return pid


def at_steps(home: Path) -> tuple[int, list[str]]:
    """Die before, within and after each primitive of a publish, in turn."""
    kills, bad = 0, []
    for moment in ("before", "within", "after"):
        for step in range(1, 200):
            before = Generations(home).current() or 0

            def body(step: int = step, moment: str = moment) -> None:
                arm(step, moment)
                publish(home)

            status = os.waitpid(fork(body), 0)[1]
            if not os.WIFSIGNALED(status):
                break
            kills += 1
            if found := problem(home, before):
                bad.append(f"{moment} {step}: {found}")
                reset(home)
    return kills, bad


def at_random(home: Path, count: int) -> tuple[int, list[str]]:
    """Kill publishers that publish one generation after the other."""
    kills, bad = 0, []
    for _ in range(count):
        before = Generations(home).current() or 0

        def body() -> None:
            while True:
                publish(home)

        pid = fork(body)
        time.sleep(random.uniform(0.001, 0.06))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills += 1
        if found := problem(home, before):
            bad.append(found)
            reset(home)
        Generations(home).gc(2)
    return kills, bad


def reset(home: Path) -> None:
    """Make a broken home usable again, so that one bad kill is counted once."""
    os.system(f"rm -rf '{home}'")
    publish(home)


def main() -> None:
    home, mode, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    random.seed(0)
    publish(home)
    if "plain" in sys.argv:
        atomic.write_atomic = plain_file
    kills, bad = at_steps(home) if mode == "steps" else at_random(home, count)
    sys.stdout.write(json.dumps({"kills": kills, "bad": bad}))


if __name__ == "__main__":
    main()
