"""Other processes: a command as a system of the bench, and one that measures.

The latter is ``python -m red_lab.bench.processes '{"call": "MODULE:NAME", …}'``; its result is the
last line of stdout, as JSON. The Python of another environment, without redhost, may run it.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["ask", "main", "run_command"]

HINT = "Run the command again; what was measured before is kept."


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


def ask(
    call: str, *, python: Path | None = None, sites: Sequence[Path] = (), **options: Any
) -> dict[str, Any]:
    """Call a function of the bench in a separate process.

    Args:
        call: ``MODULE:NAME``, the module below this package.
        python: The Python interpreter; by default this one.
        sites: Folders of packages that precede the installed ones.
        options: The function's keyword arguments, as JSON values.

    Returns:
        The function's result.

    Raises:
        MissingError: If the process failed; the last line that it wrote gives the reason.
    """
    import redhost  # not installed in the other environment
    from redhost.registry.environment import python_command

    path = os.pathsep.join(map(str, (*sites, Path(__file__).parents[2])))
    arguments = ("-m", "red_lab.bench.processes", json.dumps({"call": call, **options}))
    done = subprocess.run(  # noqa: S603  (our own command)
        python_command(*arguments, python=python),
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no output"]
        raise redhost.MissingError(
            f"a side of the comparison failed at {call}", found=lines[-1], hint=HINT
        )
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def main() -> None:
    """Run the call in the only argument and print its result."""
    options = json.loads(sys.argv[1])
    module, name = options.pop("call").split(":")
    found = getattr(importlib.import_module(f"red_lab.bench.{module}"), name)(**options)
    sys.stdout.write("\n" + json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
