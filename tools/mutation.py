"""`make mutate`: make small changes to the code, one at a time, and check that tests detect them.

mutmut needs the package that it mutates as real folders under src/, and ours are links. Each room
that pyproject.toml names under [tool.mutation] is therefore copied to build/mutation/ROOM, links
followed, and mutmut runs there with the tests of that room only. Results are kept: an interrupted
run continues where it stopped, and only changed functions are mutated again. If a whole room takes
too long, --sample tests a random sample of its mutants, and the page states it.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation_report import SAMPLE, digest_of, measure, read_words, write_report

__all__ = ["Room", "lay_out", "main", "read_rooms"]

SEED = 0
"""Random seed of hypothesis and of Python's hashes."""

UNNOTICED = (0, 5, 33)
"""mutmut's codes of mutants that no test detected; new tests may."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """Files that are mutated together, and the tests that should detect the mutants.

    Attributes:
        name: Its table under [tool.mutation].
        folder: The folder of its copy.
        package: The package with the files, below ``src``: redhost, or a plugin's package.
        mutate: The files, relative to the package's folder; for a plugin, relative to ``src``.
        tests: Files or folders of tests.
        deselect: Tests that cannot run on mutated code: code compiled by torch has no mutants.
    """

    name: str
    folder: Path
    package: str
    mutate: tuple[str, ...]
    tests: tuple[str, ...]
    deselect: tuple[str, ...] = ()


def read_rooms(root: Path, names: Sequence[str] = ()) -> tuple[Room, ...]:
    """Read the rooms of a project, or only those with the given names.

    Raises:
        SystemExit: If there is no room with a name.
    """
    tables = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["mutation"]
    if unknown := sorted(set(names) - tables.keys()):
        raise SystemExit(f"no room {', '.join(unknown)}; there are {', '.join(tables)}")
    return tuple(
        Room(
            name=name,
            folder=root / "build/mutation" / name,
            package=table.get("package", _package(root).name),
            mutate=_expand(root, table),
            tests=tuple(table["tests"]),
            deselect=tuple(table.get("deselect", ())),
        )
        for name, table in tables.items()
        if not names or name in names
    )


def lay_out(root: Path, room: Room) -> None:
    """Update a room; surviving mutants are tested again if tests changed."""
    mirror(_sources(root), room.folder / "src")
    if mirror([root / "tests"], room.folder / "tests"):
        shutil.rmtree(room.folder / "mutants/tests", ignore_errors=True)
        # mutmut maps tests to functions only for new tests, so drop the map when tests change.
        (room.folder / "mutants/mutmut-stats.json").unlink(missing_ok=True)
        for meta in _metas(room):
            _forget(meta, {n for n, code in _codes(meta).items() if code in UNNOTICED})
    (room.folder / "mutants/src").mkdir(parents=True, exist_ok=True)
    (room.folder / "pyproject.toml").write_text(_settings(root, room), "utf-8")


def mirror(sources: Sequence[Path], target: Path) -> bool:
    """Copy the content of folders, links followed; return whether anything was different.

    Equal files keep their modification time, by which mutmut recognises earlier results.
    """
    wanted = dict(file for source in sources for file in _files(source))
    stale = [path for name, path in _files(target) if name not in wanted]
    fresh = [n for n, p in wanted.items() if not _equal(p, target / n)]
    for path in stale:
        path.unlink()
    for name in fresh:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(wanted[name], target / name)
    return bool(stale or fresh)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run mutmut in each room, and write the results so far after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help="which (default: all)")
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--sample", type=int, metavar="N", help="of each room (default: all)")
    parser.add_argument("--report", action="store_true", help="only write what was found so far")
    options = parser.parse_args(arguments)
    for room in () if options.report else read_rooms(options.root, options.rooms):
        print(f"== {room.name}", flush=True)
        lay_out(options.root, room)
        (room.folder / SAMPLE).unlink(missing_ok=True)
        drawn = _draw(room, options.sample) if options.sample else []
        if drawn or not options.sample:
            _run(room, drawn, workers=options.workers)
        _report(options.root)
    print(_report(options.root))


def _draw(room: Room, count: int) -> list[str]:
    """Draw mutants of a room, forget all others, and return those not tried yet."""
    _run(room, [SAMPLE], workers=1, check=False)  # no mutant has this name: it only creates them
    codes = {n: c for meta in _metas(room) for n, c in _codes(meta).items()}
    seeded = random.Random(SEED)  # noqa: S311  (the draw must be reproducible)
    drawn = seeded.sample(sorted(codes), min(count, len(codes)))
    for meta in _metas(room):
        _forget(meta, {n for n in codes if n not in {*drawn}})
    (room.folder / SAMPLE).write_text(f"{len(drawn)}\n", "utf-8")
    return [n for n in drawn if codes[n] is None]


def _run(room: Room, mutants: Sequence[str], *, workers: int, check: bool = True) -> None:
    """Run mutmut on some mutants, or on all that were not tested yet."""
    program = str(Path(sys.executable).with_name("mutmut"))
    command = [program, "run", "--max-children", str(workers), *mutants]
    files = room.folder / "tmp"  # its own: files of other users may keep pytest from running
    files.mkdir(exist_ok=True)
    environment = {
        "OMP_NUM_THREADS": "1",
        "PYTEST_DEBUG_TEMPROOT": str(files),
        "PYTHONHASHSEED": str(SEED),
        "PYTHONPATH": str(room.folder / "mutants/src"),
    }
    env = {**os.environ, **environment}
    subprocess.run(command, cwd=room.folder, env=env, check=check, capture_output=not check)
    shutil.rmtree(files, ignore_errors=True)


def _report(root: Path) -> Path:
    rooms = [(room.folder, room.mutate) for room in read_rooms(root)]
    folder = root / "docs/results/mutation"
    path, words = folder / "metrics.json", read_words(root / "tools/survivors.toml")
    before = json.loads(path.read_text("utf-8")) if path.is_file() else None
    now = {name: digest_of(_sources(root), name) for _, names in rooms for name in names}
    return write_report(measure(rooms, words=words, seed=SEED, before=before, now=now), folder)


def _settings(root: Path, room: Room) -> str:
    """Return the pyproject.toml of a room: mutmut's table, and the project's table for pytest."""
    package = f"src/{room.package}"
    inside = package if room.package == _package(root).name else "src"
    files = [f"{inside}/{name}" for name in room.mutate]
    skipped = [f"--deselect={test}" for test in room.deselect]
    pytest = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["pytest"]
    tables = {
        "tool.mutmut": {
            "source_paths": [package],
            "only_mutate": files,
            "pytest_add_cli_args_test_selection": list(room.tests),
            "pytest_add_cli_args": [
                *("-p", "no:cacheprovider", f"--hypothesis-seed={SEED}"),
                *("-p", "no:schemathesis"),  # importing it takes longer than most tests
                *("-p", "no:unraisableexception"),  # so does its final garbage collection
                *skipped,
            ],
            "process_isolation": "forkserver",  # torch has threads, which do not survive a fork
            "on_dependency_change": "ignore",
            "timeout_constant": 6.0,  # on a busy machine tests are slow without looping
            "timeout_multiplier": 5.0,
        },
        "tool.pytest.ini_options": pytest["ini_options"],
    }
    # Strings, numbers and lists are the same in JSON and TOML.
    return "".join(
        f"[{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
        for table, values in tables.items()
    )


def _package(root: Path) -> Path:
    return next((root / "src").glob("*/__init__.py")).parent


def _sources(root: Path) -> list[Path]:
    """Return the folders of packages: the host's own, and those of its plugins."""
    return [root / "src", *sorted(root.glob("plugins/*/src"))]


def _expand(root: Path, table: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the files of a room, with names as in `Room.mutate`."""
    own = _package(root)
    folders = (source / table.get("package", own.name) for source in _sources(root))
    package = next(folder for folder in folders if folder.is_dir())
    base = package if package == own else package.parent
    found = (path for pattern in table["mutate"] for path in package.glob(pattern))
    return tuple(sorted(path.relative_to(base).as_posix() for path in found))


def _metas(room: Room) -> Iterator[Path]:
    yield from (room.folder / "mutants").rglob("*.meta")


def _codes(meta: Path) -> dict[str, int | None]:
    codes: dict[str, int | None] = json.loads(meta.read_text("utf-8"))["exit_code_by_key"]
    return codes


def _forget(meta: Path, mutants: Collection[str]) -> None:
    record = json.loads(meta.read_text("utf-8"))
    codes = {n: None if n in mutants else code for n, code in _codes(meta).items()}
    meta.write_text(json.dumps({**record, "exit_code_by_key": codes}, indent=4), "utf-8")


def _files(folder: Path) -> Iterator[tuple[str, Path]]:
    for place, _, names in os.walk(folder, followlinks=True):
        if Path(place).name != "__pycache__":
            for name in names:
                path = Path(place) / name
                yield path.relative_to(folder).as_posix(), path


def _equal(one: Path, other: Path) -> bool:
    return other.is_file() and filecmp.cmp(one, other, shallow=False)


if __name__ == "__main__":
    main()
