"""Questions: compositions side by side in one home, over one store and one cache.

The experts of one question compete under one router; those of another are no part of it. The home's
own question has no name. Each named one is a home within the home, ``HOME/questions/NAME``, with
generations, a pointer and a lock of its own: whatever takes a home takes that folder as well.
"""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import MissingError, UsageError, suggest

FOLDER = "questions"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


def home_of(home: Path, question: str | None) -> Path:
    """Return the folder of a question in a home; None is the home itself.

    Raises:
        UsageError: If no question can have that name.
    """
    if question is None:
        return home
    if not _NAME.fullmatch(question):
        expected = "at most 64 of a-z, 0-9, '.', '_' and '-', a letter or digit first"
        raise UsageError("the name of a question", expected=expected, found=repr(question))
    return root_of(home) / FOLDER / question


def question_of(home: Path) -> str | None:
    """Return the question that a folder is the home of; None for one that is no question's.

    A folder with a store of its own is a home of its own, whatever it is called.
    """
    is_one = home.parent.name == FOLDER and _NAME.fullmatch(home.name)
    return home.name if is_one and not (home / "store").is_dir() else None


def require_home(home: Path) -> Path:
    """Return a folder that a user names, unless it looks like a question's of no home.

    Raises:
        UsageError: If it does: whatever is written would lie in the folder around it.
    """
    question = question_of(home.absolute())
    if question is not None and not (root_of(home.absolute()) / "store").is_dir():
        raise UsageError(
            f"{home} cannot be a new home",
            expected=f"a folder that is not {FOLDER}/NAME, as a question of a home is",
            found=f"no home around it that could have the question {question!r}",
            hint=f"Name another folder, or a home itself with{option(question)}.",
        )
    return home


def root_of(home: Path) -> Path:
    """Return the home that a question lies in, or the home itself: where store and cache are."""
    return home if question_of(home) is None else home.parents[1]


def cache_of(home: Path) -> Path:
    """Return the folder of a home's caches, which its questions share."""
    return root_of(home) / "cache"


def homes_with(home: Path) -> tuple[Path, ...]:
    """Return every home over one store, the one that has it first."""
    root = root_of(home)
    named = (p for p in (root / FOLDER).glob("*") if _NAME.fullmatch(p.name))
    return (root, *sorted(p for p in named if question_of(p) is not None))


def composed_questions(home: Path) -> tuple[str, ...]:
    """Return the names of the questions that are composed in a home; of a question's own, none."""
    if question_of(home) is not None:
        return ()
    return tuple(p.name for p in homes_with(home)[1:] if (p / "current").exists())


def nothing_composed(home: Path, *, instead: str = "") -> MissingError:
    """Return what to raise where a home has no current generation; it names what is composed.

    Args:
        home: The folder.
        instead: What else one can do than compose.
    """
    question, known = question_of(home), composed_questions(root_of(home))
    closest = suggest(question, known) if question else ""
    who = f"question {question!r} is not composed" if question else "nothing is composed"
    if known and not question:
        instead = "name one of them with --question"
    return MissingError(
        f"{who} in {root_of(home)}",
        found=f"the questions {', '.join(known)}" if known else "",
        hint=closest.rstrip()
        or f"Run 'redhost recompose{option(question)}'" + (f", or {instead}." if instead else "."),
    )


def option(question: str | None) -> str:
    """Return what a command needs behind it to be about a question; of the home's own, nothing."""
    return f" --question {question}" if question else ""
