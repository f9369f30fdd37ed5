"""Both outputs as every command has them: nobody's text speaks to the terminal."""

from __future__ import annotations

from collections.abc import Iterable
from json import dumps
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console


class Verbatim(str):
    """A text that is printed as it is: who makes one answers for what a terminal does with it."""

    __slots__ = ()


class Printable:
    """An output in which nothing that a package wrote can speak to the terminal.

    Every command prints through it, and so do warnings, logs, errors and tracebacks. What is
    neither printable nor the end of a line is escaped as JSON escapes it, so that JSON stays JSON.

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

    def writelines(self, lines: Iterable[str]) -> None:
        """Print texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        """Be the stream in all else."""
        return getattr(self.stream, name)


class _Drawn(Printable):
    def write(self, text: str) -> int:
        return self.stream.write(Verbatim(text))


def drawing(stream: TextIO) -> Console:
    """Return what draws on a stream by terminal codes: give it `one_line` of strangers' texts."""
    from rich.console import Console

    return Console(file=cast("TextIO", _Drawn(stream)))
