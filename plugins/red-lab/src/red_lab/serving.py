"""The server's measurements, which its own package brings."""

from __future__ import annotations

import click

import redhost

__all__ = ["command"]


def command() -> click.Command:
    """Return the command that times the server.

    Raises:
        MissingError: If redhost-serve is not installed.
    """
    try:
        from redhost_serve.cli import bench
    except ImportError as e:
        raise redhost.MissingError(
            "the server is not installed", hint="Install it with 'pip install redhost-serve'."
        ) from e
    return bench
