"""An author's project: what kind of expert is wanted, beside the data that makes it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from .errors import UsageError, suggest
from .forms import FORMS

__all__ = ["ExpertPlan", "package_in", "read_plan", "write_plan"]


class ExpertPlan(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table ``[tool.redhost.expert]`` of an expert project's pyproject.toml.

    Attributes:
        id: The expert's id.
        backbone: Id of the installed backbone it is for; None for the only one.
        form: Its form.
        rank: R; None for a quarter of the width.
        writes: Where it writes; None for labels of its own, or hidden states where text is
            generated.
        reads_tap: ``final``, or the trunk's block it reads.
        writes_tap: ``final``, or the trunk's block it writes to.
        domain: The slice of inputs it knows, in a sentence.
        card: What kind of routing card it ships.
        license: Of the weights.
    """

    id: str
    backbone: str | None = None
    form: Annotated[str, Meta(pattern=f"^({'|'.join(FORMS)})$")] = "residual"
    rank: Annotated[int, Meta(ge=1)] | None = None
    writes: Literal["hidden", "logits", "labels"] | None = None
    reads_tap: str = "final"
    writes_tap: str = "final"
    domain: str = ""
    card: Literal["texts", "vectors", "statistics", "none"] = "texts"
    license: str = "Apache-2.0"


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
        UsageError: If the folder is no expert project, or its plan says what cannot be.
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
    try:
        return msgspec.convert(table, ExpertPlan)
    except msgspec.ValidationError as e:
        known = ExpertPlan.__struct_fields__
        hint = "".join(suggest(key, known) for key in table if key not in known)
        raise UsageError(f"{path}, [tool.redhost.expert]", found=str(e), hint=hint) from e


def package_in(project: Path) -> Path:
    """Return the folder of a project that its manifest and weights go into.

    Raises:
        UsageError: If there is not exactly one.
    """
    found = sorted(p.parent for p in (project / "src").glob("*/__init__.py"))
    if len(found) != 1:
        raise UsageError(
            f"{project} is no package project",
            expected="one package under src/",
            found=str(len(found)),
        )
    return found[0]
