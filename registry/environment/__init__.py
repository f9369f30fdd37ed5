"""The environment: what is installed, how far each package gets, pip, and which code is trusted."""

import sys
from pathlib import Path


def python_command(*arguments: str, python: Path | None = None) -> list[str]:
    """Return the command that runs a Python which imports nothing from the current folder.

    ``python -m`` and ``-c`` put that folder first on the path: whatever lies where the user stands
    would run in place of pip, redhost or the standard library.

    Args:
        arguments: What follows the interpreter, e.g. ``-m pip``.
        python: Another interpreter than this one.
    """
    return [str(python or sys.executable), "-P", *arguments]
