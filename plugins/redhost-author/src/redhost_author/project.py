"""An author's project: its plan, and the files of a new data package."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from string import Template
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from redhost.registry.errors import SettingsError, UsageError, one_line, suggest
from redhost.registry.home.questions import home_of
from redhost.registry.package.discover import Package, discover, from_folder
from redhost.registry.package.forms import FINAL
from redhost.registry.package.manifest import FormName, Id
from redhost.registry.queries.settings import (
    choose_backbone,
    named_backbone,
    resolve_home,
    wanted_backbone,
)

from .forms import form_named

NOT_SOURCE = ".redhost/\n__pycache__/\ndist/\n"
"""What a project's .gitignore names: state, caches and wheels. Weights are not in it: they are the
package."""


class ExpertPlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[tool.redhost.expert]`` of an expert project's pyproject.toml.

    Attributes:
        id: The expert's id.
        backbone: Id of the installed backbone it is for; None for the only one.
        form: Its form. None means, with labels of its own, a linear head or a residual one,
            whichever is better on validation rows; else ``residual``.
        rank: R; None for a quarter of the width, or 8 for an adapter.
        blocks: For an adapter that is trained here: how many of the top blocks it adapts; None
            for the upper half.
        targets: For such an adapter: the linear layers of a block that it adapts, by the end of
            their names; None for all.
        writes: The space it writes to; None for labels of its own, or hidden states for
            generation.
        reads_tap: ``final``, or the trunk's block it reads.
        writes_tap: ``final``, or the trunk's block it writes to.
        domain: The slice of inputs it is for, in a sentence.
        card: The kind of its routing card. None means, for an expert that reads at the end and
            writes labels of its own, vectors with the sums of all rows except gate rows; else
            texts.
        epsilon: For a card of statistics: ε of the noise in its sums; None for exact sums.
        delta: δ of that noise.
        license: The license of the weights.
        question: The question it answers, if that has a name.
    """

    id: str
    backbone: str | None = None
    form: FormName | None = None
    rank: Annotated[int, Meta(ge=1)] | None = None
    blocks: Annotated[int, Meta(ge=1)] | None = None
    targets: tuple[str, ...] | None = None
    writes: Literal["hidden", "logits", "labels"] | None = None
    reads_tap: str = "final"
    writes_tap: str = "final"
    domain: str = ""
    card: Literal["texts", "vectors", "statistics", "none"] | None = None
    epsilon: Annotated[float, Meta(gt=0, le=100)] | None = None
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-5
    license: str = "Apache-2.0"
    question: Id | None = None

    @property
    def acts_inside(self) -> bool:
        """Whether it reads or writes at a block."""
        return not self.reads_tap == self.writes_tap == FINAL


def write_plan(project: Path, plan: ExpertPlan) -> None:
    """Append the plan to a project's pyproject.toml."""
    lines = ["", "[tool.redhost.expert]"]
    for key, value in msgspec.structs.asdict(plan).items():
        if value is not None:
            lines.append(f"{key} = {msgspec.json.encode(value).decode()}")
    with (project / "pyproject.toml").open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def read_plan(project: Path) -> ExpertPlan:
    """Read the plan of an expert project.

    Raises:
        UsageError: If the folder is not an expert project, or its plan is invalid.
    """
    path = project / "pyproject.toml"
    try:
        table = tomllib.loads(path.read_text("utf-8"))["tool"]["redhost"]["expert"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UsageError(
            f"{project} is no expert project",
            expected="a pyproject.toml with [tool.redhost.expert]",
            hint="Make one with 'redhost new-expert NAME'.",
        ) from e
    form = table.get("form") if isinstance(table, dict) else None
    try:
        if isinstance(form, str) and ":" not in form:
            table = {**table, "form": form_named(form)}
        return msgspec.convert(table, ExpertPlan)
    except UsageError as e:
        where = f"{path}, [tool.redhost.expert]: {e.problem}"
        raise UsageError(where, expected=e.expected, hint=e.hint) from e
    except msgspec.ValidationError as e:
        fields = ExpertPlan.__struct_fields__
        hint = "".join(suggest(key, fields) for key in table if key not in fields)
        raise UsageError(f"{path}, [tool.redhost.expert]", found=str(e), hint=hint) from e


def check_noise(plan: ExpertPlan) -> None:
    """Check that noise is only used if the card shows sums and no rows.

    Raises:
        UsageError: If the card would also show rows.
    """
    if plan.epsilon is not None and plan.card != "statistics":
        raise UsageError(
            f"expert {plan.id!r} has an epsilon: noise is for sums without rows",
            expected='--card statistics, card = "statistics" in [tool.redhost.expert]',
            found=str(plan.card),
        )


def package_in(project: Path) -> Path:
    """Return the folder of a project for its manifest and weights.

    Raises:
        UsageError: If there is not exactly one.
    """
    folders = sorted(p.parent for p in (project / "src").glob("*/__init__.py"))
    if len(folders) != 1:
        raise UsageError(
            f"{project} is no package project",
            expected="one package under src/",
            found=str(len(folders)),
        )
    return folders[0]


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
dependencies = $requires

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

from redhost_author.testing import assert_expert_contract


def test_the_package_keeps_its_contract() -> None:
    assert_expert_contract(Path(__file__).parents[1])
''')

_README = Template("""\
# $dist

$summary

A data package for redhost, without code. It $alone:
redhost, a backbone and its experts each come from a wheel of their own.

    pip install $module-*.whl
    redhost list-experts
    redhost recompose

To call a version back, yank it on the index, which pip then passes over unless named, and revoke it
with 'redhost revoke': hosts that fetch your list stop using it. Copies stay: tell their users.
""")


def check_id(package_id: str) -> None:
    """Check that a name is a valid id.

    Raises:
        UsageError: If it is not; the message describes valid ids.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", package_id) or package_id == "backbone":
        raise UsageError(
            f"{package_id!r} cannot be an id",
            expected="lower-case letters, digits, '.', '_' and '-', starting with one of the first "
            "two, and not 'backbone'",
            hint=f"Such as {near!r}." if (near := _near(package_id)) else "",
        )


def _near(name: str) -> str:
    """Return the valid id that is most like a name; empty if there is none."""
    near = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("._-")[:64]
    return "" if near == "backbone" else near


def check_free(project: Path) -> None:
    """Check that a new project replaces nothing.

    Raises:
        UsageError: If its path exists already.
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
    requires: Sequence[str] = (),
) -> Path:
    """Write a project that installs as a data package.

    Args:
        folder: The project's folder, created if missing; existing files are replaced.
        kind: Whether it is a backbone's or an expert's.
        package_id: The id in its manifest; the distribution is ``red-KIND-ID``.
        summary: One line about it.
        version: The version of the distribution.
        license: SPDX expression.
        requires: Distributions that have files of it, with their versions.

    Returns:
        The folder for manifest and weights.
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
        "requires": f"[{', '.join(map(_quoted, requires))}]",
        "alone": f"requires {' and '.join(requires)}, which has its weights"
        if requires
        else "has no dependencies, so pip installs this package alone",
    }
    inner = folder / "src" / module
    inner.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text(NOT_SOURCE, "utf-8")
    (folder / "pyproject.toml").write_text(_PYPROJECT.substitute(words), "utf-8")
    (folder / "README.md").write_text(_README.substitute(words), "utf-8")
    docstring = summary.replace("\\", r"\\")
    (inner / "__init__.py").write_text(f'"""{docstring} (data only)."""\n', "utf-8")
    if kind == "expert":
        (folder / "tests").mkdir(exist_ok=True)
        (folder / "tests" / "test_contract.py").write_text(_TEST.substitute(words), "utf-8")
    return inner


def _quoted(text: str) -> str:
    """Return a text as a TOML string without its quotes, which equals JSON's."""
    return msgspec.json.encode(text).decode()


def backbone_for(
    project: Path, plan: ExpertPlan, *, home: Path | None, backbone: str | None
) -> Package:
    """Return the installed backbone to train a project on.

    Args:
        project: The project; a package left there by an earlier training names a backbone.
        plan: Its plan, which may name one and takes precedence over that package.
        home: The state folder; the lock of the plan's question names one as well.
        backbone: The backbone given on the command line, which takes precedence over all.
    """
    backbone, home = backbone or plan.backbone, home_of(resolve_home(home), plan.question)
    installed, named = discover("backbone"), named_backbone(from_folder(project))
    if backbone is None and named is not None:
        with suppress(SettingsError):
            return choose_backbone(installed, None, named=named)
    table = f"[tool.redhost.expert] of {project / 'pyproject.toml'}"
    return choose_backbone(installed, wanted_backbone(home, backbone), table=table)
