"""The environment: installed packages and their states, pip, and which code is trusted."""

import sys
from pathlib import Path


def python_command(*arguments: str, python: Path | None = None) -> list[str]:
    """Return the command for a Python that imports nothing from the current folder.

    ``python -m`` and ``-c`` put that folder first on the path; files in the user's current folder
    could then replace pip, redhost or the standard library.

    Args:
        arguments: The arguments of the interpreter, e.g. ``-m pip``.
        python: An interpreter other than this one.
    """
    return [str(python or sys.executable), "-P", *arguments]
