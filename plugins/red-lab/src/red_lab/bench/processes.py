"""Whole processes as systems of the bench: this Python, and redhost."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from redhost.registry.environment import python_command

__all__ = ["PYTHON", "REDHOST", "run_command"]

PYTHON = tuple(python_command("-c"))
REDHOST = tuple(python_command("-m", "redhost"))


def run_command(command: Sequence[str], **variables: str) -> None:
    """Run a command to its end.

    Args:
        command: The command line.
        variables: Variables added to the current environment.

    Raises:
        RuntimeError: If it fails; with what it wrote.
    """
    env = {**os.environ, **variables}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # installed packages are not recompiled at each start
    done = subprocess.run(  # noqa: S603  (our own command)
        command, env=env, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr}")
