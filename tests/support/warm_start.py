"""Processes that start in milliseconds: copies of a Python that has imported torch already.

Most of a command's time is importing torch, and the suite starts hundreds of them. Instead of
``python -m redhost …`` a test runs `warm_client.py`, which passes its arguments, environment,
folder and streams to a server; the server forks, and the copy runs what ``-m MODULE`` or
``-c CODE`` names. It is a process of its own, with its own exit code, streams and signals. What a
copy cannot show is how Python starts: tests of imports, of the time to start and of terminals use
a fresh interpreter. So does a command that changes a variable which libraries read while they are
imported (`warm_client.READ_AT_IMPORT`).

`start_warm` does the same for what redhost itself starts by `python_command`: pip, workers,
servers, and the commands that `serve --watch` runs. A test of how those start asks for the fixture
`fresh_children`.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import gc
import importlib
import io
import marshal
import os
import py_compile
import runpy
import select
import shutil
import signal
import site
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import traceback
import types
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import shared_rows
from warm_client import LENGTH, STREAMS, at_import, read_exactly

from redhost.registry.wheel.policy import NameOwners

__all__ = ["FRESH", "SELDOM", "start_warm", "warm_command"]

CLIENT = Path(__file__).with_name("warm_client.py")
MODULES = (
    "redhost.cli",
    "redhost.core.host",
    "redhost.core.composition.recompose",
    "safetensors.torch",
    "tokenizers",
    "transformers",
    "pip._internal.commands.install",
    "pip._internal.commands.uninstall",
    "packaging.metadata",
    "packaging.requirements",
    "redhost.commands.compose",
    "redhost.commands.experts",
    "redhost_serve.run",
    "model_signing.signing",
    "model_signing.verifying",
)
"""What the server imports. None of it starts a thread: only the forking one would be copied."""

SELDOM = 10_000, 20, 20
"""Thresholds of the garbage collector in a process of many tests, and in copies."""

BASE = sys.executable
"""The interpreter of clients: `sys.executable` of a copy may be that of a virtual environment."""

ENVIRONMENT = dict(os.environ)
"""Of the whole session: the test that first needs the server may have changed its own."""


FIRST = threading.Lock()
"""Held while the server starts."""


def warm_command(*arguments: str, python: str = sys.executable) -> list[str]:
    """Return the command line that does what ``python ARGUMENT …`` does, only sooner.

    Args:
        arguments: ``-m MODULE …``, ``-c CODE …`` or ``FILE.py …``, and ``-P`` before them.
        python: This interpreter, or that of a virtual environment which sees its packages.
    """
    if not hasattr(os, "pidfd_open"):  # not Linux
        return [python, *arguments]
    return client(address(), python, *arguments)


FRESH = "FRESH_CHILDREN"
"""A variable that, if set, has redhost start its children as it does for users."""

OF_STREAMS = {
    "bufsize", "close_fds", "cwd", "encoding", "env", "errors",
    "start_new_session", "stderr", "stdin", "stdout", "text",
}  # fmt: skip
"""Options of `subprocess.Popen` that mean the same to a client and to what it stands for."""


def start_warm(server: Path | None = None) -> Callable[..., None]:
    """Return a `subprocess.Popen.__init__` by which what `python_command` names starts warm.

    Args:
        server: The socket of the server that starts it; by default this process's own.
    """
    start, python = subprocess.Popen.__init__, sys.executable

    def init(process: Any, args: Any, *more: Any, **options: Any) -> None:
        command = list(args) if isinstance(args, list | tuple) else []
        given = {name for name, value in options.items() if value is not None}
        known = not more and given <= OF_STREAMS and FRESH not in os.environ
        if known and command[:2] == [python, "-P"] and runs_warm(command[2]):
            start(process, client(server or address(), *command), **options)
            process.args = args
        else:
            start(process, args, *more, **options)

    return init


def runs_warm(option: str) -> bool:
    """Return whether a copy can run what follows: code, a module, or a file."""
    return option in {"-c", "-m"} or option.endswith(".py")


def client(server: Path, python: str, *arguments: str) -> list[str]:
    return [BASE, "-ISE", f"{server}.pyc", str(server), python, *arguments]


def address() -> Path:
    """Return the socket of this process's server, which ends with it."""
    with FIRST:  # threads that ask at once get the same
        return started()


@functools.cache
def started() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="warm-"))
    server = subprocess.Popen(
        [sys.executable, __file__, str(folder / "socket")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert server.stdin is not None and server.stdout is not None
    server.stdout.readline()  # it listens

    def end() -> None:
        server.communicate()  # closes its standard input
        shutil.rmtree(folder)

    atexit.register(end)
    return folder / "socket"


@dataclass(frozen=True)
class _Order:
    """What a copy is to run, and where."""

    python: str
    arguments: Sequence[str]
    folder: str
    environment: dict[str, str]
    umask: int
    ignored: Sequence[int]
    streams: dict[int, int]


@dataclass(frozen=True)
class _Copy:
    """A process that runs, its descriptor, and the client that waits for its end."""

    pid: int
    ended: int
    client: socket.socket


COLLAPSE = 25
"""Linux's MADV_COLLAPSE, which Python does not name: from 6.1 on; older ones refuse it."""


def use_large_pages() -> None:
    """Have this process's memory moved to pages of 2 MiB: a fork has fewer to copy and to leave."""
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, mode, _, device, *_ = line.split()
        start, end = (int(address, 16) for address in span.split("-"))
        if (mode, device) == ("rw-p", "00:00"):  # of no file
            advise(start, end - start, COLLAPSE)


def serve(address: str) -> _Order | None:
    """Listen until standard input ends; in a copy, return what it is to run."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(64)
    Path(f"{address}.env").write_bytes(marshal.dumps(at_import(dict(os.environ))))
    py_compile.compile(str(CLIENT), cfile=f"{address}.pyc")  # else each client compiles itself
    sys.stdout.write("listening\n")
    sys.stdout.flush()
    sources: list[Any] = [listener, sys.stdin]
    copies: list[_Copy] = []
    while sources or copies:
        waiting = [*sources, *(c.ended for c in copies), *(c.client for c in copies)]
        ready, _, _ = select.select(waiting, [], [])
        copies = [copy for copy in copies if is_running(copy, ready)]
        if sys.stdin in ready:
            sources.clear()
        elif listener in ready:
            client, _ = listener.accept()
            order = receive(client)
            if order is None:
                client.close()
                continue
            if (pid := os.fork()) == 0:
                for copy in copies:
                    os.close(copy.ended)
                    copy.client.close()
                listener.close()
                client.close()
                return order
            copies.append(_Copy(pid, os.pidfd_open(pid), client))
            for descriptor in order.streams.values():
                os.close(descriptor)
    return None


def is_running(copy: _Copy, ready: Sequence[object]) -> bool:
    """Pass a client's signals on to its copy, or tell it how that ended."""
    if copy.ended in ready:
        _, status = os.waitpid(copy.pid, 0)
        with suppress(BrokenPipeError):
            copy.client.sendall(status.to_bytes(4, "big"))
        os.close(copy.ended)
        copy.client.close()
        return False
    if copy.client in ready:
        number = copy.client.recv(1)
        os.kill(copy.pid, number[0] if number else signal.SIGKILL)  # no number: the client is dead
    return True


def receive(client: socket.socket) -> _Order | None:
    """Receive the order of a client, with its open streams; none of one that was killed."""
    head, descriptors, _, _ = socket.recv_fds(client, LENGTH, len(STREAMS))
    length = int.from_bytes(head, "big")
    data = read_exactly(client, length)
    if not head or len(data) < length:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    message = marshal.loads(data)
    streams = dict(zip(message.pop("open"), descriptors, strict=True))
    return _Order(**message, streams=streams)


def run(order: _Order, address: Path) -> None:
    """Become the process that a client asked for."""
    for number in order.ignored:
        signal.signal(number, signal.SIG_IGN)
    os.umask(order.umask)
    os.environ.clear()
    os.environ.update(order.environment)
    os.chdir(order.folder)
    move_streams(order.streams)
    if folder := order.environment.get(shared_rows.FOLDER):
        shared_rows.install(setattr, shared_rows.in_folder(Path(folder)))
    sys.path.pop(0)  # this file's folder
    enter(order.python)
    sys.path[:0] = filter(None, order.environment.get("PYTHONPATH", "").split(os.pathsep))
    options = list(order.arguments)
    while not runs_warm(options[0]):
        assert options.pop(0) == "-P", order.arguments  # the only option that tests use
    kind, target, *rest = options if options[0] in {"-c", "-m"} else ("-f", *options)
    if "-P" not in order.arguments:
        first = {"-c": "", "-m": order.folder, "-f": str(Path(target).resolve().parent)}
        sys.path.insert(0, first[kind])
    subprocess.Popen.__init__ = start_warm(address)  # type: ignore[method-assign]
    sys.argv = ["-c" if kind == "-c" else target, *rest]
    if kind == "-f":
        runpy.run_path(target, run_name="__main__")
    elif kind == "-m":
        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(target, "<string>", "exec"), main.__dict__)


def end(order: _Order, address: Path) -> None:
    """Run a copy to its end, and end as Python does, but for taking every library apart again."""
    code: Any = 0
    try:
        run(order, address)
    except SystemExit as e:
        code = e.code
    except KeyboardInterrupt:
        traceback.print_exc()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    except BaseException:
        traceback.print_exc()
        code = 1
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    try:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and not stream.closed:
                stream.flush()
    except OSError:
        traceback.print_exc()
        code = 120
    os._exit(code or 0)


def move_streams(streams: dict[int, int]) -> None:
    """Make the client's streams this process's, closed ones closed, as Python opens them."""
    for number in STREAMS:
        if number in streams:
            os.dup2(streams[number], number)
            os.close(streams[number])
        else:
            os.close(number)
    for number, name in STREAMS.items():
        stream = open_stream(number) if number in streams else None
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def open_stream(number: int) -> TextIO:
    """Open a standard stream as Python does when it starts."""
    direct = number > 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
    mode = "rb" if number == 0 else "wb"
    binary: Any = os.fdopen(number, mode, buffering=0 if direct else -1, closefd=False)
    return io.TextIOWrapper(
        binary,
        errors="backslashreplace" if number == 2 else "strict",
        line_buffering=number == 2 or (number == 1 and os.isatty(1)),
        write_through=direct,
    )


def enter(python: str) -> None:
    """Be the interpreter of a virtual environment that sees this one's packages after its own."""
    if python == sys.executable:
        return
    folder = Path(python).parents[1]
    sys.executable = python
    sys.prefix = sys.exec_prefix = str(folder)
    site.PREFIXES[:] = [sys.prefix]
    sysconfig._CONFIG_VARS = None  # type: ignore[attr-defined]  # made again from the new prefix
    sysconfig._CONFIG_VARS_INITIALIZED = False  # type: ignore[attr-defined]  # from Python 3.13 on
    sysconfig._PREFIX = sysconfig._EXEC_PREFIX = sys.prefix  # type: ignore[attr-defined]
    own = Path(sysconfig.get_path("purelib"))
    before = len(sys.path)
    site.addsitedir(str(own))
    added = sys.path[before:]
    first = next(n for n, p in enumerate(sys.path) if p.endswith("site-packages"))
    sys.path[:] = [*sys.path[:first], *added, *sys.path[first:before]]
    importlib.invalidate_caches()


if __name__ == "__main__":
    for module in MODULES:
        importlib.import_module(module)
    tempfile.tempdir = None  # dill, which torch imports where it is there, has it chosen
    # The real one reads the metadata of all distributions, some hundred.
    vars(sys.modules["pip._internal.network.session"])["user_agent"] = lambda: "pip"
    # pip looks for it on the whole path, once for each of a hundred platforms. Nobody has it.
    sys.modules["_manylinux"] = None  # type: ignore[assignment]
    # The names that this environment's distributions claim: each command would read them again.
    NameOwners().others(Path(sysconfig.get_path("purelib")), "", dist="")
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False  # copies need not take torch's operators apart
    gc.freeze()  # collecting garbage would copy every page
    gc.set_threshold(*SELDOM)
    if sys.platform == "linux":
        use_large_pages()
    order = serve(sys.argv[1])
    if order is not None:
        end(order, Path(sys.argv[1]))
