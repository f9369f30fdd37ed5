"""`redhost lab seeds`: every claim and requirement of the four seeds, with its status.

A row contains no figures. It names a results file and the path of a number in it.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import click
import msgspec

import redhost
from red_lab.metrics import render

__all__ = ["SEEDS", "STATUSES", "Row", "page", "read_rows", "seeds"]

Seed = Literal["000", "001", "002", "003"]
Status = Literal["works", "departs", "half", "missing"]

STATUSES: Mapping[Status, str] = {
    "works": "implemented as in the seed, or measured with the result that the seed claims",
    "departs": "implemented differently, or measured with a different result; the row states how",
    "half": "implemented or shown in part; the row states what is missing",
    "missing": "not implemented, or not measured",
}
SEEDS: Mapping[Seed, str] = {
    "000": "toy experiments",
    "001": "residual expert decomposition on arithmetic",
    "002": "modular learning of robust generative models",
    "003": "modular neural composition",
}
SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
}


class Figure(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A number of a results file.

    Attributes:
        name: Its name in the table.
        file: The results file, relative to docs/results.
        path: Keys and indices that lead to the number, separated by `` > ``.
        form: Its format, as in ``format``.
    """

    name: str
    file: str
    path: str
    form: str = ".3f"

    def value(self, results: Path) -> float:
        """Return the number.

        Raises:
            redhost.MissingError: If the file is missing, or has no number there.
        """
        try:
            found = _read(results / self.file)
            for key in self.path.split(" > "):
                found = found[int(key) if isinstance(found, list) else key]
        except (OSError, LookupError, TypeError, ValueError) as e:
            raise self._gone(type(e).__name__) from e
        if not isinstance(found, int | float):
            raise self._gone(type(found).__name__)
        return found

    def _gone(self, found: str) -> redhost.MissingError:
        return redhost.MissingError(
            f"the figure {self.name!r} of the seeds' table is gone",
            expected=f"a number at {self.path} of {self.file}",
            found=found,
            hint="run the command that writes that file, or change the row in seeds.toml",
        )


class Check(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A comparison that a row's note depends on: of two figures, or of a figure and a number."""

    left: str
    sign: Literal["<", "<=", ">", ">=", "=="]
    right: str | float


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One claim or requirement.

    Attributes:
        seed: ``000`` … ``003``.
        section: The section of the seed.
        claim: The claim or requirement, in a few words.
        status: Its status.
        code: Modules or their members, by dotted name.
        commands: Commands, as they are typed.
        page: The page that shows it, relative to docs/results.
        figures: The figures that are shown.
        note: The result; every comparison of ours in it has a check.
        checks: Conditions on the figures under which the note is true.
        reason: The page that explains a departure, relative to docs/results.
    """

    seed: Seed
    section: str
    claim: str
    status: Status
    code: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    page: str = ""
    figures: tuple[Figure, ...] = ()
    note: str = ""
    checks: tuple[Check, ...] = ()
    reason: str = ""

    def values(self, results: Path) -> dict[str, float]:
        """Return the figures by name.

        Raises:
            redhost.MissingError: If one is gone.
            redhost.UsageError: If a comparison in the note is no longer true.
        """
        values = {f.name: f.value(results) for f in self.figures}
        for check in self.checks:
            right = values[check.right] if isinstance(check.right, str) else check.right
            if not SIGNS[check.sign](values[check.left], right):
                raise redhost.UsageError(
                    f"seed {self.seed}, {self.section}: {self.note}",
                    expected=f"{check.left} {check.sign} {check.right}",
                    found=f"{values[check.left]} and {right}",
                    hint="say in seeds.toml what came out now",
                )
        return values


def read_rows() -> Sequence[Row]:
    """Return every row, in the seeds' order."""
    data = files("red_lab").joinpath("seeds.toml").read_bytes()
    return msgspec.toml.decode(data, type=dict[str, tuple[Row, ...]])["rows"]


def page(rows: Sequence[Row], results: Path) -> str:
    """Return the page, with one table for each seed; its figures are read from the results files.

    Raises:
        redhost.MissingError: If a figure is missing.
        redhost.UsageError: If a sentence no longer agrees with its figures.
    """
    return render("seeds", {}, rows=rows, results=results, statuses=STATUSES, seeds=SEEDS)


@click.command()
@click.option(
    "--results",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    default=Path("docs/results"),
    show_default=True,
    help="Folder of the metrics, to which seeds.md is written.",
)
def seeds(*, results: Path) -> None:
    """Write the table of the four seeds' claims with their status."""
    path = results / "seeds.md"
    path.write_text(page(read_rows(), results), "utf-8")
    click.echo(path)


@cache
def _read(file: Path) -> Any:
    return json.loads(file.read_text("utf-8"))
