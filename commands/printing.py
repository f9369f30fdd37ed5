"""Output streams of all commands, which escape terminal codes in text from packages."""

from __future__ import annotations

from collections.abc import Iterable
from json import dumps
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console


class Verbatim(str):
    """Text that is printed unescaped; its creator must make sure that it is safe for terminals."""

    __slots__ = ()


class Printable:
    """An output stream that escapes control codes, which text from packages may contain.

    Every command prints through it, and so do warnings, logs, errors and tracebacks. Characters
    other than printable ones and line ends are escaped as in JSON, so that JSON stays valid.

    Args:
        stream: The underlying stream.
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
        """Return any other attribute of the underlying stream."""
        return getattr(self.stream, name)


class _Drawn(Printable):
    def write(self, text: str) -> int:
        return self.stream.write(Verbatim(text))


def drawing(stream: TextIO) -> Console:
    """Return a console that draws on a stream; pass text from packages through `one_line` first."""
    from rich.console import Console

    return Console(file=cast("TextIO", _Drawn(stream)))
