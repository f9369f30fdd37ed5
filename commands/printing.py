"""Output streams of all commands: they escape terminal codes, and no write on them fails."""

from __future__ import annotations

import os
from collections.abc import Iterable
from errno import EPIPE
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

if TYPE_CHECKING:
    from rich.console import Console


class Verbatim(str):
    """Text that is printed unescaped; its creator must make sure that it is safe for terminals."""

    __slots__ = ()


class Printable:
    """An output stream that escapes control codes, and on which no write fails.

    Every command prints through it, and so do warnings, logs, errors and tracebacks. Characters
    other than printable ones and line ends are escaped as in JSON, so that JSON stays valid. From
    the first write that fails on, output is discarded, so that a command finishes what it began.

    Args:
        stream: The underlying stream; None if it was closed before Python started.

    Attributes:
        fault: Why output was lost; empty if none was, or if its reader closed the pipe.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self.closed_before = stream is None
        self.stream = stream or Path(os.devnull).open("w")  # noqa: SIM115  (for the whole process)
        self.fault = ""

    def write(self, text: str) -> int:
        """Print a text."""
        if not isinstance(text, Verbatim) and not text.replace("\n", "").isprintable():
            text = "".join(c if c in "\n\t" or c.isprintable() else dumps(c)[1:-1] for c in text)
        if self.closed_before:
            self.fault = "it is closed"
        try:
            return self.stream.write(text)
        except OSError as e:
            self._discard(e)
            return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            self.stream.flush()
        except OSError as e:
            self._discard(e)

    def _discard(self, error: OSError) -> None:
        """Discard what is buffered and what is written later; the interpreter flushes at exit."""
        if error.errno != EPIPE:
            self.fault = error.strerror or str(error)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.stream.fileno())
        os.close(null)

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


def fill_descriptors() -> None:
    """Open the standard descriptors that are closed; the next opened files would get their numbers.

    Otherwise a library that writes to descriptor 2 would write into one of them.
    """
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004  (standard error)
        os.set_inheritable(null, True)
    os.close(null)
