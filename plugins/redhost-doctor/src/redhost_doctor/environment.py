"""Checks of Python, of this project's versions, and of the libraries that they require."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet

import redhost
from redhost.commands.lazy import PLUGINS
from redhost.registry.environment import python_command
from redhost.registry.environment.trust import source_tree
from redhost.registry.package.discover import canonical, plugin_entry_points
from redhost_doctor.finding import Finding, Subject, fail, ok, warn
from redhost_doctor.install import AGAIN, install_extra
from redhost_doctor.shell import pip_command
from redhost_doctor.source import arguments_for, unknown_source

PATIENCE = 120
"""Seconds that the import of torch may take."""

OURS = {f"redhost-{extra}": extra for extra in PLUGINS}
"""Plugin of this project → its extra."""


def check_python(_: Subject) -> Iterator[Finding]:
    """Check that redhost supports this Python."""
    supported = SpecifierSet(metadata.metadata("redhost")["Requires-Python"])
    here, program = ".".join(map(str, sys.version_info[:3])), python_command()[0]
    if supported.contains(here, prereleases=True):
        yield ok("python", f"{here}, {program}")
        return
    names = (f"python3.{minor}" for minor in range(40, 10, -1))
    newer = (n for n in names if supported.contains(f"{n[6:]}.0") and shutil.which(n))
    mend = "".join(shlex.join([name, "-m", "venv", "env"]) for name in [*newer][:1])
    yield fail("python", f"{here}, but redhost needs {supported}", mend=mend)


def check_versions(_: Subject) -> Iterator[Finding]:
    """Check that redhost and its plugins are of one version."""
    host, recorded = redhost.__version__, metadata.version("redhost")
    findings = []
    if host != recorded:
        tree = source_tree()
        here = ("--no-deps", "-e", str(tree)) if tree else (*AGAIN, f"redhost=={host}")
        text = f"redhost {host} runs, and {recorded} is what was installed"
        findings.append(fail("versions", text, mend=pip_command("install", *here)))
    plugins = {n: v for n in OURS if (v := installed_version(n)) is not None}
    for name, version in plugins.items():
        if version != host:
            text = f"{name} is {version}, and redhost {host}"
            findings.append(fail("versions", text, mend=install_extra(OURS[name])))
    for unmet in unmet_requirements():
        if canonical(unmet.requirement.name) == "redhost" and unmet.dist not in plugins:
            text = f"{unmet.dist} needs {unmet.requirement}, and redhost is {host}"
            mend, named = "", arguments_for(unmet.dist)
            if named:
                mend = pip_command("install", "--upgrade", "--no-deps", *named)
            text += unknown_source(mend, unmet.dist)
            findings.append(fail("versions", text, mend=mend))
    yield from findings or [ok("versions", f"redhost {host} and {len(plugins)} plugins of it")]


def check_requirements(_: Subject) -> Iterator[Finding]:
    """Check what redhost and installed plugins require, as ``pip check`` does."""
    by_dist = defaultdict[str, list[Unmet]](list)
    for unmet in unmet_requirements():
        if canonical(unmet.requirement.name) not in {"redhost", "torch", *OURS}:
            by_dist[unmet.dist].append(unmet)
    for dist, several in by_dist.items():
        lacks = (f"{unmet.requirement} (found {unmet.version or 'none'})" for unmet in several)
        text = f"{dist} needs {', '.join(lacks)}"
        names = (f"{u.requirement.name}{u.requirement.specifier}" for u in several)
        # Without what a plugin requires, all other commands work.
        state = fail if dist == "redhost" else warn
        yield state("requirements", text, mend=pip_command("install", *names))
    if not by_dist:
        yield ok("requirements", f"those of redhost and {len(_dists()) - 1} plugins")


def check_torch(_: Subject) -> Iterator[Finding]:
    """Check in another process that torch can be imported."""
    required = next(r for r in requirements("redhost") if canonical(r.name) == "torch")
    wanted, version = f"torch{required.specifier}", installed_version("torch")
    if version is not None and not required.specifier.contains(version, prereleases=True):
        text, mend = f"redhost needs {wanted}, found {version}", pip_command("install", wanted)
        yield fail("torch", text, mend=mend)
        return
    try:
        done = subprocess.run(  # noqa: S603  (a list, no shell)
            python_command("-c", "import torch; torch.zeros(1)"),
            check=False,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
            env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        )
        lines = [] if done.returncode == 0 else done.stderr.strip().splitlines() or ["no word"]
    except subprocess.TimeoutExpired:
        lines = [f"it takes more than {PATIENCE} seconds"]
    if not lines:
        yield ok("torch", f"{version or 'of no distribution'} can be imported")
    else:
        again = AGAIN if version is not None else ()
        mend = pip_command("install", *again, wanted)
        yield fail("torch", f"cannot be imported: {lines[-1][:300]}", mend=mend)


@dataclass(frozen=True, kw_only=True)
class Unmet:
    """A requirement that is not met.

    Attributes:
        dist: Who requires it.
        requirement: What it requires.
        version: The version that is installed; None if none is.
    """

    dist: str
    requirement: Requirement
    version: str | None


def unmet_requirements() -> Iterator[Unmet]:
    """Yield every requirement of redhost, and of plugins that are installed, that is not met."""
    for dist in _dists():
        for required in requirements(dist):
            version = installed_version(required.name)
            if version is None or not required.specifier.contains(version, prereleases=True):
                yield Unmet(dist=dist, requirement=required, version=version)


def requirements(dist: str) -> Iterator[Requirement]:
    """Yield what an installed distribution requires here, without its extras."""
    for line in metadata.requires(dist) or ():
        try:
            required = Requirement(line)
        except InvalidRequirement:
            continue
        if required.marker is None or required.marker.evaluate({"extra": ""}):
            yield required


def installed_version(dist: str) -> str | None:
    """Return the version of an installed distribution, None if there is none."""
    try:
        return metadata.version(dist)
    except metadata.PackageNotFoundError:
        return None


def _dists() -> list[str]:
    """Return redhost and the distributions that bring plugins or commands for it."""
    groups = ("redhost.plugins", "redhost.commands")
    plugins = {e.dist for group in groups for e in plugin_entry_points(group)}
    return ["redhost", *sorted(d for d in plugins if installed_version(d) is not None)]
