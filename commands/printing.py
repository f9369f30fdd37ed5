"""Standard output as every command has it: nobody's text speaks to the terminal."""

from __future__ import annotations

from json import dumps
from typing import Any, TextIO


class Verbatim(str):
    """A text that is printed as it is: who makes one answers for what a terminal does with it."""

    __slots__ = ()


class Printable:
    """Standard output in which nothing that a package wrote can speak to the terminal.

    Every command prints through it. What is neither printable nor the end of a line is escaped as
    JSON escapes it, so that JSON stays JSON; errors are escaped where they are made.

    Args:
        stream: What is printed on.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        """Print a text."""
        if not isinstance(text, Verbatim) and not text.replace("\n", "").isprintable():
            text = "".join(c if c in "\n\t" or c.isprintable() else dumps(c)[1:-1] for c in text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        """Be the stream in all else."""
        return getattr(self.stream, name)
