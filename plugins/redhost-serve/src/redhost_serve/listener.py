"""The socket that a server listens on: an address and a port, or a path of a Unix socket."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import redhost

__all__ = ["bind", "bind_path", "listening"]

PLACE = re.compile(r"(?P<path>.+?)(?::(?P<mode>[0-7]{3,4}))?", re.DOTALL)
PRIVATE = "600"
"""The permissions of a Unix socket: its owner alone may connect."""


@contextlib.contextmanager
def listening(host: str, port: int, *, uds: str | None) -> Iterator[tuple[socket.socket, str]]:
    """Listen while the block runs; a Unix socket is removed afterwards.

    Args:
        host: The address.
        port: The port; 0 for any that is free.
        uds: The path of a Unix socket instead, with permissions after a colon if others than its
            owner may connect.

    Yields:
        The socket, and where it is: its URL, or ``unix:PATH``.

    Raises:
        SettingsError: If it cannot listen there.
    """
    if uds is None:
        with bind(host, port) as listener:
            name = f"[{host}]" if ":" in host else host
            yield listener, f"http://{name}:{listener.getsockname()[1]}"
        return
    match = PLACE.fullmatch(uds)
    path, mode = Path(match["path"] if match else uds), (match and match["mode"]) or PRIVATE
    with bind_path(path, mode=int(mode, 8)) as listener:
        mine = path.stat().st_ino
        try:
            yield listener, f"unix:{path}"
        finally:
            with contextlib.suppress(OSError):
                if path.stat().st_ino == mine:  # another server may have replaced it
                    path.unlink()


def bind(host: str, port: int) -> socket.socket:
    """Return a socket bound to an address.

    Raises:
        SettingsError: If the address is not available.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as e:
        listener.close()
        raise redhost.errors.SettingsError(
            f"cannot listen on {host}, port {port}",
            found=e.strerror or str(e),
            hint="Choose others with --host and --port.",
        ) from e
    return listener


def bind_path(path: Path, *, mode: int) -> socket.socket:
    """Return a Unix socket bound to a path; a socket that nobody listens on is replaced.

    Args:
        path: The path.
        mode: Its permissions.

    Raises:
        SettingsError: If something else is there, a server listens there, or it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX)
    mask = os.umask(0o777 & ~mode)  # never open to others, not even until a chmod
    try:
        _remove_stale(path)
        listener.bind(str(path))
    except OSError as e:
        listener.close()
        raise redhost.errors.SettingsError(
            f"cannot listen on {path}",
            found=e.strerror or str(e),
            hint="Choose another with --uds.",
        ) from e
    finally:
        os.umask(mask)
    return listener


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that has ended.

    Raises:
        OSError: If it is no socket, or a server listens on it.
    """
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise FileExistsError(None, "something else than a socket is there")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise OSError(None, "a server listens there")
