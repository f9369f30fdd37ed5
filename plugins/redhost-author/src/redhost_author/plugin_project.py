"""`new-plugin`: the project of a plugin that adds one part, with its test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args

import redhost
from redhost.commands.lazy import PLUGINS
from redhost_author.new_folder import making
from redhost_author.project import NOT_SOURCE, check_free

from .templating import filled

__all__ = ["KINDS", "Kind", "write_plugin"]

Kind = Literal["form", "router", "task"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The kinds of parts, each with a folder of templates."""

PUBLIC: frozenset[Kind] = frozenset({"router"})
"""The kinds that the public API is enough for; others need the version they were written for."""


def write_plugin(name: str, kind: Kind) -> Path:
    """Write the project ``./redhost-NAME``.

    Args:
        name: The name of the part, and of the distribution after ``redhost-``.
        kind: What the plugin adds.

    Returns:
        The project's folder.

    Raises:
        UsageError: If the name cannot be one, or the folder exists.
    """
    dist = _dist_of(name)
    project, module = Path(dist), dist.replace("-", "_")
    check_free(project)
    words = {
        "name": name,
        "dist": dist,
        "module": module,
        "class": "".join(part.capitalize() for part in name.split("-")),
        "kind": kind,
        "requirements": _requirements(kind),
    }
    files = {
        "pyproject.toml": "plugin/pyproject",
        "README.md": f"{kind}/README",
        f"src/{module}/__init__.py": f"{kind}/module",
        f"tests/test_{name.replace('-', '_')}.py": f"{kind}/test",
    }
    with making(project):
        for path, template in files.items():
            (project / path).parent.mkdir(parents=True, exist_ok=True)
            (project / path).write_text(filled(template, words), "utf-8")
        (project / "src" / module / "py.typed").touch()
        (project / ".gitignore").write_text(NOT_SOURCE, "utf-8")
    return project


def _dist_of(name: str) -> str:
    """Return the distribution of a plugin with this name.

    Raises:
        UsageError: If the name is none, or is that of a plugin of redhost itself.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name) or len(name) > 24:  # noqa: PLR2004
        raise redhost.UsageError(
            f"{name!r} cannot be a plugin's name",
            expected="at most 24 lower-case letters, digits and single '-', a letter first",
        )
    if name in {*PLUGINS, "mechanisms"}:
        raise redhost.UsageError(
            f"{name!r} is the name of a plugin of redhost itself", hint="Choose another name."
        )
    return f"redhost-{name}"


def _requirements(kind: Kind) -> str:
    """Return what a plugin of a kind depends on, as TOML; a form is trained by redhost-author."""
    needed = ["redhost", "redhost-author"] if kind == "form" else ["redhost"]
    bound = f"{'>=' if kind in PUBLIC else '=='}{redhost.__version__}"
    return ", ".join(f'"{name}{bound}"' for name in needed)
