"""The program in a test's process: see `warm_start.py`. It imports little, to start in no time."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # pyright: ignore  (`signal` imports enum)
import _socket
import marshal
import os
import sys

LENGTH = 8
"""Bytes of a message's length."""

STREAMS = {0: "stdin", 1: "stdout", 2: "stderr"}
READ_AT_IMPORT = ("HF_", "LANG", "LC_", "LD_", "MKL_", "OMP_", "PYTHON", "TRANSFORMERS_")
"""Starts of the names of variables that are read while Python starts or a library is imported."""


def at_import(environment: dict[str, str]) -> dict[str, str]:
    """Return the variables that a copy can no longer read."""
    names = sorted(n for n in environment if n.startswith(READ_AT_IMPORT) and n != "PYTHONPATH")
    return {name: environment[name] for name in names}


def read_exactly(source: _socket.socket, count: int) -> bytes:
    """Read as many bytes, or all there are if the other side ends before."""
    parts = b""
    while len(parts) < count and (part := source.recv(count - len(parts))):
        parts += part
    return parts


def is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def send_all(server: _socket.socket, message: bytes, streams: list[int]) -> None:
    """Send a message's length with the open streams, and then the message."""
    numbers = b"".join(n.to_bytes(4, sys.byteorder) for n in streams)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)]
    server.sendmsg([len(message).to_bytes(LENGTH, "big")], rights if streams else [])
    server.sendall(message)


def main(address: str, python: str, *arguments: str) -> None:
    """Have a copy run, and end as it ended."""
    streams = [number for number in STREAMS if is_open(number)]
    for number in STREAMS:  # a closed stream's number is not to be taken by another file
        if number not in streams:
            os.open(os.devnull, os.O_RDONLY)
    environment = dict(os.environ)
    with open(f"{address}.env", "rb") as file:  # noqa: PTH123  (pathlib is slow to import)
        if marshal.load(file) != at_import(environment):
            for number in STREAMS:
                if number not in streams:
                    os.close(number)
            os.execv(python, [python, *arguments])
    umask = os.umask(0)
    os.umask(umask)
    message = {
        "python": python,
        "arguments": arguments,
        "folder": os.getcwd(),  # noqa: PTH109
        "environment": environment,
        "umask": umask,
        "ignored": [
            s
            for s in _signal.valid_signals() - {_signal.SIGKILL, _signal.SIGSTOP}
            if _signal.getsignal(s) == _signal.SIG_IGN
        ],
        "open": streams,
    }
    server = _socket.socket(_socket.AF_UNIX)
    server.connect(address)
    for number in (_signal.SIGHUP, _signal.SIGINT, _signal.SIGQUIT, _signal.SIGTERM):
        if _signal.getsignal(number) != _signal.SIG_IGN:
            _signal.signal(number, lambda n, _: server.sendall(bytes([n])))
    send_all(server, marshal.dumps(message), streams)
    status = int.from_bytes(read_exactly(server, 4), "big")
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != _signal.SIGKILL:
            _signal.signal(os.WTERMSIG(status), _signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.WEXITSTATUS(status))


if __name__ == "__main__":
    main(*sys.argv[1:])
