"""Templates: files of this package in which ``%{word}`` stands for a value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import Template

__all__ = ["filled"]

FOLDER = Path(__file__).parent / "templates"


class _PercentTemplate(Template):
    """A template that leaves ``$`` to shells and to GitHub."""

    delimiter = "%"


def filled(name: str, words: Mapping[str, str]) -> str:
    """Return the text of a template with its words replaced.

    Args:
        name: Its path below ``templates/``, without the suffix.
        words: A value for each word that occurs in it.
    """
    text = (FOLDER / f"{name}.tmpl").read_text("utf-8")
    return _PercentTemplate(text).substitute(words)
