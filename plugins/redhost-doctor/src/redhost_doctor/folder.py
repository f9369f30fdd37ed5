"""Checks of the home as a folder: who may read and write it, its space, what processes left in it.

Nothing is written.
"""

from __future__ import annotations

import os
import shlex
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from redhost.errors import StoreError
from redhost.registry.atomic import read_struct
from redhost.registry.home.generations import Generations
from redhost.registry.home.locks import Lease, Leases
from redhost.registry.home.questions import cache_of, homes_with
from redhost_doctor.finding import Finding, Subject, fail, ok, warn
from redhost_doctor.shell import redhost_command

LITTLE, SCARCE = 64 * 2**20, 256 * 2**20
"""Free bytes below which a recompose may fail, and below which one may soon."""

_SHOWN = 3


def check_home(subject: Subject) -> Iterator[Finding]:
    """Check that the home can be read and written, and by nobody else."""
    home = subject.home
    if not home.exists():
        yield from _check_absent(home)
        return
    if not home.is_dir():
        yield fail("home", f"{home} is no folder", mend=f"mv {_quoted(home)} {_quoted(home)}.old")
        return
    states = {path: path.lstat() for path in (home, *_below(home))}
    links = {path for path, state in states.items() if stat.S_ISLNK(state.st_mode)}
    plain = {path: state for path, state in states.items() if path not in links}
    yours = all(s.st_uid == os.geteuid() for s in plain.values()) or os.geteuid() == 0
    mend = f"chmod -R u+rwX {_quoted(home)}"
    if not yours:
        mend = f"sudo chown -R {os.geteuid()} {_quoted(home)} && {mend}"
    shut = [p for p in plain if not os.access(p, os.W_OK)]
    unreadable = [p for p, state in plain.items() if not _may(p, state, os.R_OK)]
    unwritable = [p for p, state in plain.items() if not _may(p, state, os.W_OK)]
    shared = [p for p, state in plain.items() if state.st_mode & stat.S_IWOTH]
    if unreadable:
        yield fail("home", f"cannot be read: {_few(unreadable)}", mend=mend)
    elif shut and not unwritable:  # no mode forbids it
        text = f"cannot be written, whatever its permissions: {_few(shut)}"
        yield fail("home", text, mend=_mend_of_system(home))
    elif unwritable:
        text = f"cannot be written, so that nothing can be composed: {_few(unwritable)}"
        yield warn("home", text, mend=mend)
    if shared:
        text = f"others can change what is composed: {_few(shared)}"
        yield warn("home", text, mend=f"chmod -R o-w {_quoted(home)}")
    if not (unreadable or unwritable or shut or shared):
        yield ok("home", f"{home}, {len(states):,} files and folders")


def check_space(subject: Subject) -> Iterator[Finding]:
    """Check that there is space for a generation."""
    home = subject.home
    place = next(p for p in (home, *home.parents) if p.is_dir())
    free = shutil.disk_usage(place).free
    text = f"{free / 2**20:,.0f} MiB are free for {home}"
    if free >= SCARCE:
        yield ok("space", text)
        return
    cache = cache_of(home)
    in_cache = sum(p.lstat().st_size for p in _below(cache)) if cache.is_dir() else 0
    text += f", whose cache has {in_cache / 2**20:,.0f}"
    mend = f"rm -r {_quoted(cache)}" if in_cache else redhost_command("gc", "--keep=1", home=home)
    yield (fail if free < LITTLE else warn)("space", text, mend=mend)


def check_processes(subject: Subject) -> Iterator[Finding]:
    """Check that nothing is left of processes that were stopped, and who writes or serves."""
    left, stale, held = list[str](), 0, 0
    for where in homes_with(subject.home):
        leases = Leases(where).folder
        names = {p.stem for p in leases.glob("*-*.*")}
        live = {name for name in names if is_held(leases / f"{name}.lock")}
        held, stale = held + len(live), stale + len(names - live)
        left += [*Generations(where).leftovers(), *(p.name for p in where.glob("lock-is-stale"))]
        for name in sorted(live):
            try:
                read_struct(leases / f"{name}.json", Lease, hint="")
            except StoreError as e:
                text = f"{e.reason}, so that nothing can be removed"
                yield fail("processes", text, mend=f"kill {name.partition('-')[0]}")
                return
    writing = "one is writing" if is_held(subject.home / "writer.lock") else "none is writing"
    if (stale or left) and writing == "none is writing":
        text = f"{stale} leases and {len(left)} files were left by processes that were stopped"
        # Even a dry run removes these, and nothing else.
        yield warn("processes", text, mend=redhost_command("gc", "--dry-run", home=subject.home))
    else:
        yield ok("processes", f"{writing}, {held} hold a generation")


def is_held(path: Path) -> bool:
    """Return whether a process holds the lock that a file is for."""
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:  # in a home that cannot be written
        return False
    lock.release()
    return False


def _check_absent(home: Path) -> Iterator[Finding]:
    place = next(p for p in home.parents if p.exists())
    if _may(place, place.stat(), os.W_OK):
        yield ok("home", f"{home} is not there yet")
    else:
        text = f"{home} is not there, and {place} cannot be written"
        yield fail("home", text, mend=f"chmod u+rwx {_quoted(place)}")


def _mend_of_system(home: Path) -> str:
    """Return what makes a home writable that its file system, or an attribute, keeps as it is."""
    if os.statvfs(home).f_flag & os.ST_RDONLY:
        mounted = f"findmnt -n -o TARGET --target {_quoted(home)}"
        return f'sudo mount -o remount,rw "$({mounted})"'
    return f"sudo chattr -R -i {_quoted(home)}"


def _below(folder: Path) -> Iterator[Path]:
    """Yield everything below a folder; links are not followed."""
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in (*folders, *files))


def _may(path: Path, state: os.stat_result, access: int) -> bool:
    """Return whether this user may read or write a path; for its owner, as its mode says.

    The system lets an administrator do anything, and the next user is none.
    """
    if state.st_uid != os.geteuid():
        return os.access(path, access)
    needed = stat.S_IRUSR if access == os.R_OK else stat.S_IWUSR
    needed |= stat.S_IXUSR if stat.S_ISDIR(state.st_mode) else 0
    return state.st_mode & needed == needed


def _few(paths: list[Path]) -> str:
    shown = ", ".join(map(str, paths[:_SHOWN]))
    return shown if len(paths) <= _SHOWN else f"{shown} and {len(paths) - _SHOWN} more"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
