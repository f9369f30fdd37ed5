"""A server in a process of its own, for measurements: as users run it, with its own memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import redhost

__all__ = ["ServerProcess", "compose_home", "serving"]

ROUTERS = ("evidence", "centroid", "statistics")


@dataclass(frozen=True, kw_only=True)
class ServerProcess:
    """A running server.

    Attributes:
        url: Its address.
        pid: Its process id.
    """

    url: str
    pid: int

    def memory(self) -> int:
        """Return its resident bytes; 0 if the system does not report them."""
        try:
            status = Path(f"/proc/{self.pid}/status").read_text("ascii")
        except OSError:
            return 0
        return next(int(x.split()[1]) * 1024 for x in status.splitlines() if x.startswith("VmRSS"))


def compose_home(home: Path) -> redhost.Host:
    """Compose the installed experts with three routers in turn: generations 1, 2 and 3."""
    host = redhost.Host.open(home, plugins=redhost.plugins.Plugins(()))
    for router in ROUTERS:
        host.recompose(router=router, accept=True)
    return host


@contextlib.contextmanager
def serving(home: Path, *options: str, log: Path | None = None) -> Iterator[ServerProcess]:
    """Run ``redhost serve`` on a free port while the block runs.

    Args:
        home: The home to serve.
        options: Further options of the command.
        log: The file it logs to; by default the stderr of this process.

    Raises:
        MissingError: If it does not start.
    """
    arguments = ("-m", "redhost", "serve", "--home", str(home), "--port", "0", *options)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}  # same bits and less waiting
    command = redhost.plugins.python_command(*arguments)
    with (
        contextlib.nullcontext() if log is None else log.open("w") as errors,
        subprocess.Popen(  # noqa: S603  (our own command)
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as child,
    ):
        try:
            line = child.stdout.readline() if child.stdout else ""
            _, found, url = line.strip().partition(" on ")
            if not found:
                raise redhost.MissingError("the server did not start", found=line.strip())
            yield ServerProcess(url=url, pid=child.pid)
        finally:
            child.send_signal(signal.SIGINT)
