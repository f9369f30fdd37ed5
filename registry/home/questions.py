"""Questions: several compositions in one home, with a shared store and cache.

The experts of one question compete under one router; experts of other questions take no part. The
default question has no name. Each named one is a home within the home, ``HOME/questions/NAME``,
with its own generations, pointer and lock: every function that takes a home also takes that folder.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from ..errors import MissingError, UsageError, suggest
from .composition import LOCK

FOLDER = "questions"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def home_of(home: Path, question: str | None) -> Path:
    """Return the folder of a question in a home; None means the home itself.

    Raises:
        UsageError: If the name of the question is invalid.
    """
    if question is None:
        return home
    if not _NAME.fullmatch(question):
        expected = "at most 64 of a-z, 0-9, '.', '_' and '-', a letter or digit first"
        raise UsageError("the name of a question", expected=expected, found=repr(question))
    return root_of(home) / FOLDER / question


def question_of(home: Path) -> str | None:
    """Return the name of the question that a folder belongs to; None if it is no question's folder.

    A folder with its own store is always a home of its own, independent of its name.
    """
    is_one = home.parent.name == FOLDER and _NAME.fullmatch(home.name)
    return home.name if is_one and not (home / "store").is_dir() else None


def require_home(home: Path) -> Path:
    """Return a folder given by the user, unless it looks like a question's folder without a home.

    Raises:
        UsageError: If it does; data would be written to the folder around it.
    """
    question = question_of(home.absolute())
    if question is not None and not (root_of(home.absolute()) / "store").is_dir():
        raise UsageError(
            f"{home} cannot be a new home",
            expected=f"a folder that is not {FOLDER}/NAME, as a question of a home is",
            found=f"no home around it that could have the question {question!r}",
            hint=f"Name another folder, or a home itself with --question {question}.",
        )
    return home


def root_of(home: Path) -> Path:
    """Return the home that a question lies in, or the home itself; it has store and cache."""
    return home if question_of(home) is None else home.parents[1]


def cache_of(home: Path) -> Path:
    """Return the folder of a home's caches, which its questions share."""
    return root_of(home) / "cache"


def recorded_place(place: str, home: Path) -> str:
    """Return an index, folder or wheel as a home's lock names it: in the project, relative to it.

    Args:
        place: An address without credentials, an absolute path, or what a lock names already.
        home: The folder of the lock.
    """
    if not Path(place).is_relative_to(root_of(home.absolute()).parent):
        return place
    return Path(os.path.relpath(place, home)).as_posix()


def place_of(source: str, home: Path) -> str:
    """Return the index, folder or wheel that a home's lock names, a path as an absolute one."""
    return source if not source or "://" in source else os.path.normpath(home.absolute() / source)


def homes_with(home: Path) -> tuple[Path, ...]:
    """Return every home that shares one store, first the one that contains it."""
    root = root_of(home)
    named = (p for p in (root / FOLDER).glob("*") if _NAME.fullmatch(p.name))
    return (root, *sorted(p for p in named if question_of(p) is not None))


def composed_questions(home: Path) -> tuple[str, ...]:
    """Return the names of a home's composed questions; none for the folder of a question."""
    if question_of(home) is not None:
        return ()
    return tuple(p.name for p in homes_with(home)[1:] if (p / "current").exists())


def nothing_composed(home: Path, *, instead: str = "") -> MissingError:
    """Return the error for a home without a current generation; it names what is composed.

    Args:
        home: The folder.
        instead: An alternative to composing, for the hint.
    """
    question, composed = question_of(home), composed_questions(root_of(home))
    problem = f"question {question!r} is not composed" if question else "nothing is composed"
    locked = (
        f"'redhost sync{option(root_of(home))}' for what its lock names"
        if (home / LOCK).is_file()
        else instead
    )
    instead = "name one of them with --question" if composed and not question else locked
    return MissingError(
        f"{problem} in {root_of(home)}",
        found=f"the questions {', '.join(composed)}" if composed else "",
        hint=(suggest(question, composed).rstrip() if question else "")
        or f"Run 'redhost recompose{option(home)}'" + (f", or {instead}." if instead else "."),
    )


def option(home: Path) -> str:
    """Return the options that a command needs to act on a home, or on a question of one.

    Empty for the default question of the home that a command acts on by itself.
    """
    root, question = root_of(home), question_of(home)
    default = Path.cwd() / (os.environ.get("REDHOST_HOME") or ".redhost")
    named = "" if root == default else f" --home {shlex.quote(str(root))}"
    return named + (f" --question {question}" if question else "")
