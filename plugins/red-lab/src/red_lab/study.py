"""A study as one value: its cells, what a cell measures, and the page of all of them.

A study of another package is one module and one template. Its command gets the options --seeds,
--out and --work; each cell is stored as JSON when it finishes, so that the same command resumes.
Other experiments share these options, and a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import click

import redhost
from red_lab.metrics import Metrics, cached_json, read_metrics, render, write_results

__all__ = ["WORK", "Cell", "Study", "out_option", "require_scikit_learn", "seeds_option", "timed"]

FOLDER = click.Path(path_type=Path, file_okay=False)

WORK = click.option(
    "--work",
    type=FOLDER,
    default=Path("build/lab"),
    show_default=True,
    help="Folder of checkpoints, from which the same command resumes.",
)


def out_option(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option --out whose default is a folder of docs/results."""
    return click.option(
        "--out",
        type=FOLDER,
        default=Path("docs/results") / name,
        show_default=True,
        help="Folder of metrics.json and its page.",
    )


def seeds_option(count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option --seeds with its usual number."""
    return click.option(
        "--seeds",
        type=click.IntRange(min=1),
        default=count,
        show_default=True,
        help="Number of random seeds.",
    )


def require_scikit_learn() -> None:
    """Check that scikit-learn is installed, before anything is trained that is compared with it.

    Raises:
        redhost.MissingError: If it is not installed.
    """
    if find_spec("sklearn") is None:
        raise redhost.MissingError(
            "what experts are compared with is fitted by scikit-learn",
            expected="scikit-learn",
            found="none",
            hint="pip install scikit-learn",
        )


@contextmanager
def timed(seconds: MutableMapping[str, float], what: str) -> Iterator[None]:
    """Store under a name how long the block takes."""
    start = perf_counter()
    yield
    seconds[what] = perf_counter() - start


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The smallest part of a study that is measured and stored on its own.

    Attributes:
        part: Name of a part of the study, e.g. of a data set.
        seed: Random seed.
        work: Folder of features and checkpoints.
    """

    part: str
    seed: int
    work: Path


@dataclass(frozen=True, kw_only=True)
class Study:
    """An experiment that is measured cell by cell. Torch is imported in its functions only.

    Attributes:
        name: Name of the command, and of the folder of the results.
        help: What the command does, in a line of at most 62 characters.
        schema: Name and version of the content of metrics.json.
        parts: Names of the parts, in the order of the page.
        measure: Returns the results of a cell, as JSON has them.
        summarise: Part, its cells' results by seed → the part's metrics.
        package: Package whose folder `templates` has the page.
        template: File of the page, without ``.md.j2``; the name of the study by default.
        names: Metrics → what the template uses besides.
        draw: Writes figures from the metrics to a folder.
        seeds: The usual number of seeds.
        options: Options of its own, shown before the common ones.
        instead: Gets the values of these options; True if no part is to be run.
        once: Parts without randomness: they have one cell.
    """

    name: str
    help: str
    schema: str
    parts: tuple[str, ...]
    measure: Callable[[Cell], Any]
    summarise: Callable[[str, Sequence[Any]], Metrics]
    package: str = "red_lab"
    template: str | None = None
    names: Callable[[Metrics], Mapping[str, object]] | None = None
    draw: Callable[[Metrics, Path], object] | None = None
    seeds: int = 5
    options: tuple[click.Option, ...] = ()
    instead: Callable[..., bool] | None = None
    once: tuple[str, ...] = ()

    def page(self, metrics: Metrics) -> str:
        """Return the page of the metrics."""
        names = self.names(metrics) if self.names else {}
        return render(self.template or self.name, metrics, package=self.package, **names)

    def run(self, *, parts: Iterable[str], seeds: int, out: Path, work: Path) -> Path:
        """Measure the cells that are not on disk yet; write metrics.json, page and figures.

        Args:
            parts: Names of parts; the results of other parts stay as they are.
            seeds: Number of random seeds.
            out: Folder of the results.
            work: Folder of features and of single cells.

        Returns:
            The path of metrics.json.
        """
        summaries = read_metrics(out).get("tasks", {})
        for part in parts:
            count = 1 if part in self.once else seeds
            cells = [Cell(part=part, seed=seed, work=work) for seed in range(count)]
            summaries[part] = self.summarise(part, [self._measured(cell) for cell in cells])
        ordered = {part: summaries[part] for part in self.parts if part in summaries}
        metrics = {"schema": self.schema, "tasks": ordered}
        return write_results(metrics, out, page=self.page, draw=self.draw, sort_keys=False)

    @property
    def command(self) -> click.Command:
        """The study as a command that runs all parts, or those of --part."""

        @click.command(self.name, help=self.help)
        @click.option(
            "--part",
            "parts",
            type=click.Choice(self.parts),
            multiple=True,
            help="Which parts of the study to run.",
        )
        @seeds_option(self.seeds)
        @out_option(self.name)
        @WORK
        def command(
            *, parts: tuple[str, ...], seeds: int, out: Path, work: Path, **values: Any
        ) -> None:
            if self.instead is not None and self.instead(**values):
                return
            click.echo(self.run(parts=parts or self.parts, seeds=seeds, out=out, work=work))

        command.params[:0] = self.options
        return command

    def _measured(self, cell: Cell) -> Any:
        folder = cell.work / self.name
        folder.mkdir(parents=True, exist_ok=True)
        return cached_json(folder / f"{cell.part}-{cell.seed}.json", partial(self.measure, cell))
