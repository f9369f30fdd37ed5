"""Checks of what the process gets from its machine: the temporary folder, and threads."""

from __future__ import annotations

import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from redhost_doctor.finding import Finding, Subject, fail, ok, warn

_THREADS = re.compile(r"[1-9][0-9]*( *, *[1-9][0-9]*)*")
_NAMES = ("TMPDIR", "TEMP", "TMP")


def check_temporary(_: Subject) -> Iterator[Finding]:
    """Check that there is a temporary folder, the one that was chosen, and that code may run in it.

    Ray, and compilers that torch starts, write programs there.
    """
    named = next((n for n in _NAMES if os.environ.get(n)), None)
    elsewhere = 'mkdir -p "$HOME/.cache/tmp" && export TMPDIR="$HOME/.cache/tmp"'
    try:
        folder = Path(tempfile.gettempdir())
    except FileNotFoundError as e:
        yield fail("temporary", str(e.strerror), mend=elsewhere)
        return
    chosen = Path(os.environ[named]) if named else folder
    if chosen.absolute() != folder.absolute():
        mend = f"mkdir -p {shlex.quote(str(chosen))}" if not chosen.exists() else elsewhere
        text = f"{named} is {chosen}, which cannot be written to: {folder} is used"
        yield warn("temporary", text, mend=mend)
    elif hasattr(os, "statvfs") and os.statvfs(folder).f_flag & os.ST_NOEXEC:
        yield warn("temporary", f"no program may run in {folder} (noexec)", mend=elsewhere)
    else:
        yield ok("temporary", str(folder))


def check_threads(_: Subject) -> Iterator[Finding]:
    """Check that torch is given threads that this machine has."""
    cores, value = cores_here(), os.environ.get("OMP_NUM_THREADS", "")
    mend = f"export OMP_NUM_THREADS={cores}"
    every = os.cpu_count() or 1
    if value and not _THREADS.fullmatch(value.strip()):
        yield warn("threads", f"OMP_NUM_THREADS is {value!r}, which is no number", mend=mend)
    elif value and (number := int(value.partition(",")[0])) > cores:
        text = f"OMP_NUM_THREADS is {number}, and this process has {cores} cores"
        yield warn("threads", text, mend=mend)
    elif not value and cores < every and cores == (_quota() or 0):
        text = f"torch takes {every} threads, and this container has {cores} cores"
        yield warn("threads", text, mend=mend)
    else:
        yield ok("threads", f"{value or cores} of {cores} cores")


def cores_here() -> int:
    """Return the cores that this process may use: those it is bound to, and its quota of them."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(bound or 1, _quota() or bound or 1))


def _quota() -> int | None:
    """Return the cores of this container's quota, None if there is none."""
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split()
        return max(1, round(int(quota) / int(period)))
    return None
