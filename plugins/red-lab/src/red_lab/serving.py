"""The server's measurements, which come with the package of the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

import redhost

__all__ = ["command", "required"]


def command() -> click.Command:
    """Return the command that times the server.

    Raises:
        MissingError: If redhost-serve is not installed.
    """
    with required():
        from redhost_serve.cli import bench
    return bench


@contextmanager
def required() -> Iterator[None]:
    """Import modules that need the server inside the block.

    Raises:
        MissingError: If redhost-serve is not installed.
    """
    try:
        yield
    except ImportError as e:
        raise redhost.MissingError(
            "the server is not installed", hint="Install it with 'pip install redhost-serve'."
        ) from e
