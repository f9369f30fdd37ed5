"""The program in a test's process: see `warm_start.py`. It imports little, to start in no time."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress

LENGTH = 8
"""Bytes of a message's length."""

STREAMS = {0: "stdin", 1: "stdout", 2: "stderr"}
READ_AT_IMPORT = ("HF_", "LANG", "LC_", "LD_", "MKL_", "OMP_", "PYTHON", "TRANSFORMERS_")
"""Starts of the names of variables that are read while Python starts or a library is imported."""


def at_import(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a copy can no longer read."""
    names = sorted(n for n in environment if n.startswith(READ_AT_IMPORT) and n != "PYTHONPATH")
    return {name: environment[name] for name in names}


def read_exactly(source: socket.socket, count: int) -> bytes:
    """Read as many bytes, or all there are if the other side ends before."""
    parts = b""
    while len(parts) < count and (part := source.recv(count - len(parts))):
        parts += part
    return parts


def is_open(number: int) -> bool:
    with suppress(OSError):
        os.fstat(number)
        return True
    return False


def main(address: str, python: str, *arguments: str) -> None:
    """Have a copy run, and end as it ended."""
    streams = [number for number in STREAMS if is_open(number)]
    for number in STREAMS:  # a closed stream's number is not to be taken by another file
        if number not in streams:
            os.open(os.devnull, os.O_RDONLY)
    with open(f"{address}.env", encoding="utf-8") as file:  # noqa: PTH123  (pathlib is slow to import)
        if json.load(file) != at_import(os.environ):
            for number in STREAMS:
                if number not in streams:
                    os.close(number)
            os.execv(python, [python, *arguments])
    umask = os.umask(0)
    os.umask(umask)
    message = json.dumps(
        {
            "python": python,
            "arguments": arguments,
            "folder": os.getcwd(),  # noqa: PTH109
            "environment": dict(os.environ),
            "umask": umask,
            "ignored": [
                s
                for s in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}
                if signal.getsignal(s) == signal.SIG_IGN
            ],
            "open": streams,
        }
    ).encode()
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda n, _: server.sendall(bytes([n])))
    socket.send_fds(server, [len(message).to_bytes(LENGTH, "big")], streams)
    server.sendall(message)
    status = int.from_bytes(read_exactly(server, 4), "big")
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
