"""`new-workflow`: the workflow that checks an expert's project and publishes its wheel."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import redhost
from redhost.registry.atomic import make_folder, reporting, write_atomic
from redhost.registry.package.discover import from_folder
from redhost.registry.package.forms import FORMS, INSIDE, PLUGIN_FORMS
from redhost.registry.package.manifest import ExpertManifest
from redhost.registry.package.readers import read_expert
from redhost_author.project import backbone_for, package_in, read_plan

from .templating import filled

__all__ = ["PATHS", "write_workflow"]

PATHS = {"github": Path(".github", "workflows", "publish.yml")}
"""Where each service looks for it, below the root of a repository."""


def write_workflow(project: Path, service: str, *, force: bool) -> tuple[Path, tuple[str, ...]]:
    """Write the workflow of an expert's project.

    Args:
        project: The project, with a trained expert.
        service: One of `PATHS`.
        force: Whether a file that is there may be replaced.

    Returns:
        The file, and what its author should know.

    Raises:
        UsageError: If the project has no trained expert, or the file exists.
        MissingError: If the backbone of the expert is not installed.
    """
    plan = read_plan(project)
    manifest = _manifest_of(project)
    path = project / PATHS[service]
    if path.exists() and not force:
        raise redhost.UsageError(
            f"{path} is there already", hint="Replace it with --force, or edit it."
        )
    backbone = backbone_for(project, plan, home=None, backbone=manifest.backbone.name)
    host = f"redhost[{','.join(_extras(manifest))}]=={redhost.__version__}"
    words = {
        "dist": tomllib.loads((project / "pyproject.toml").read_text("utf-8"))["project"]["name"],
        "requirements": shlex.join([host, f"{backbone.dist}=={backbone.version}"]),
        "backbone": shlex.quote(manifest.backbone.name),
    }
    with reporting(path):
        make_folder(path.parent)
        write_atomic(path, filled(f"{service}/publish", words).encode())
    return path, _notes(project, manifest)


def _manifest_of(project: Path) -> ExpertManifest:
    """Return the manifest of a project's trained expert.

    Raises:
        UsageError: If it has none.
    """
    if not (package_in(project) / "expert.json").is_file():
        raise redhost.UsageError(
            f"{project} has no trained expert: its workflow trains nothing",
            expected="expert.json in its package",
            hint=f"Run 'redhost train-expert {shlex.quote(str(project))} --data FILE'.",
        )
    return read_expert(from_folder(project)).unwrap(f"the expert of {project}").manifest


def _extras(manifest: ExpertManifest) -> list[str]:
    """Return the extras of redhost that check and pack such an expert."""
    inside = ["peft"] if INSIDE in manifest.makers else []
    return sorted({"author", "sign", *inside, *filter(None, [PLUGIN_FORMS.get(manifest.form)])})


def _notes(project: Path, manifest: ExpertManifest) -> tuple[str, ...]:
    """Return what the workflow does not do by itself."""
    notes = list[str]()
    if manifest.form not in {*FORMS, *PLUGIN_FORMS}:
        notes.append(f"form {manifest.form!r}: add its plugin, and 'redhost trust', to Install")
    roots = [folder for folder in project.resolve().parents if (folder / ".git").exists()]
    if roots and not (project / ".git").exists():
        notes.append(f"workflows are read from the root of a repository, which is {roots[0]}")
    return tuple(notes)
