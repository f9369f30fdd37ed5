"""Commands as they can be typed here: of this redhost and this environment, whatever is on PATH."""

from __future__ import annotations

import shlex
import shutil
from importlib.util import find_spec
from pathlib import Path

from redhost.registry.environment import python_command
from redhost.registry.queries.settings import resolve_home


def redhost_command(*arguments: str, home: Path | None = None, question: str | None = None) -> str:
    """Return a command of redhost.

    Args:
        arguments: The verb and its arguments.
        home: The home it acts on; named only if the verb would take another one;
            None for a verb that takes none.
        question: The question it acts on.
    """
    named = () if home in {None, resolve_home()} else ("--home", str(home))
    about = ("--question", question) if question else ()
    program = ["redhost"] if _on_path("redhost") else python_command("-m", "redhost")
    return shlex.join([*program, *arguments, *named, *about])


def pip_command(verb: str, *arguments: str) -> str:
    """Return a command of pip, or of uv if there is no pip; without both, one that brings pip."""
    if find_spec("pip") is None and shutil.which("uv"):
        python = python_command()[0]
        return shlex.join(["uv", "pip", verb, "--python", python, *arguments])
    pip = "pip" if _on_path("pip") else shlex.join(python_command("-m", "pip"))
    command = f"{pip} {shlex.join([verb, *arguments])}"
    if find_spec("pip") is None:
        return f"{shlex.join(python_command('-m', 'ensurepip'))} && {command}"
    return command


def _on_path(program: str) -> bool:
    """Return whether a name on PATH is the program of this environment."""
    path = shutil.which(program)
    return path is not None and Path(path).parent == Path(python_command()[0]).parent
