"""The project around a package: pyproject.toml, README.md, an import package without code."""

from __future__ import annotations

import re
from pathlib import Path
from string import Template
from typing import Literal

import msgspec

from .errors import UsageError, one_line

__all__ = ["check_free", "check_id", "write_project"]

_PYPROJECT = Template("""\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "$dist"
version = "$version"
description = $description
readme = "README.md"
license = $license
requires-python = ">=3.11"
dependencies = []

[project.entry-points."redhost.${kind}s"]
"$id" = "$module"

[tool.hatch.build.targets.wheel]
packages = ["src/$module"]
# A .gitignore must not be able to drop the weights.
artifacts = ["*.safetensors"]

[tool.hatch.build.targets.sdist]
artifacts = ["*.safetensors"]
""")

_TEST = Template('''\
"""The contract of $dist, as any host will check it."""

from pathlib import Path

from redhost.testing import assert_expert_contract


def test_the_package_keeps_its_contract() -> None:
    assert_expert_contract(Path(__file__).parents[1])
''')

_README = Template("""\
# $dist

$summary

A data package for [redhost](https://pypi.org/project/redhost/): a manifest and weights, no code.

    pip install $dist
    redhost list-experts
    redhost recompose
""")


def check_id(package_id: str) -> None:
    """Check that a name can be an id.

    Raises:
        UsageError: If it cannot; the message says what can.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", package_id) or package_id == "backbone":
        raise UsageError(
            f"{package_id!r} cannot be an id",
            expected="lower-case letters, digits, '.', '_' and '-', starting with one of the first "
            "two, and not 'backbone'",
        )


def check_free(project: Path) -> None:
    """Check that a new project replaces nothing.

    Raises:
        UsageError: If there is something where it is to be.
    """
    if project.exists():
        raise UsageError(f"{project} is there already", hint="Choose another name, or remove it.")


def write_project(
    folder: Path,
    *,
    kind: Literal["backbone", "expert"],
    package_id: str,
    summary: str,
    version: str = "0.1.0",
    license: str = "Apache-2.0",  # noqa: A002  (the manifest's word)
) -> Path:
    """Write a project that installs as a data package.

    Args:
        folder: The project's folder, made where it is missing; files of it are replaced.
        kind: What it carries.
        package_id: The id in its manifest; the distribution is ``red-KIND-ID``.
        summary: One line about it.
        version: Of the distribution.
        license: SPDX expression.

    Returns:
        The folder that manifest and weights go into.
    """
    dist = f"red-{kind}-{package_id}"
    module = dist.replace("-", "_").replace(".", "_")
    summary = one_line(" ".join(summary.replace('"', "'").split()))
    words = {
        "dist": dist,
        "module": module,
        "id": package_id,
        "kind": kind,
        "summary": summary,
        "description": _quoted(summary),
        "version": version,
        "license": _quoted(license),
    }
    inner = folder / "src" / module
    inner.mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_PYPROJECT.substitute(words), "utf-8")
    (folder / "README.md").write_text(_README.substitute(words), "utf-8")
    told = summary.replace("\\", r"\\")
    (inner / "__init__.py").write_text(f'"""{told} (data only)."""\n', "utf-8")
    if kind == "expert":
        (folder / "tests").mkdir(exist_ok=True)
        (folder / "tests" / "test_contract.py").write_text(_TEST.substitute(words), "utf-8")
    return inner


def _quoted(text: str) -> str:
    """Return a text as TOML has it between quotes, which is as JSON has it."""
    return msgspec.json.encode(text).decode()
