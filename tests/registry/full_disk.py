"""Publish on a disk until it is full, and say what then holds.

Run as a program on a small file system of its own: ``python full_disk.py HOME``; prints JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from killer import problem, publish

from redhost.registry.errors import RedhostError
from redhost.registry.home.generations import Generations


def main() -> None:
    home = Path(sys.argv[1])
    error = ""
    for _ in range(1000):
        try:
            publish(home)
        except RedhostError as e:
            error = str(e)
            break
    generations = Generations(home)
    full = generations.current() or 0
    served = len(generations.file(full, "router.safetensors"))
    left = generations.leftovers()
    filler, refused = home.parent / "filler", None
    with filler.open("wb", buffering=0) as file:  # the very last byte, too
        try:
            while file.write(bytes(512)):
                pass
        except OSError as e:
            refused = e.strerror
    try:
        generations.rollback()
        rolled = "done"
    except RedhostError as e:
        rolled = str(e)
    current = generations.current()
    freed = generations.gc(1).bytes  # while not a byte is free
    size = filler.stat().st_size
    publish(home)
    filler.unlink()
    found = {
        "published": full,
        "error": error,
        "served": served,
        "left": left,
        "refused": refused,
        "rollback": rolled,
        "current_when_full": current,
        "freed": freed,
        "filler": size,
        "numbers": generations.numbers(),
        "problem": problem(home),
    }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
