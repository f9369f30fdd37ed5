"""Options and a clock that several experiments share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import click

import redhost

__all__ = ["WORK", "out_option", "require_scikit_learn", "seeds_option", "timed"]

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
