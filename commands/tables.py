"""Tables on stdout, in which names stay whole in a narrow terminal."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import JustifyMethod

LONG = 200
"""Rows above which a table is printed as plain columns."""

NARROW = 6
"""Least width of a column, in characters, in any terminal."""


def table(
    title: str,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    whole: Collection[str] = (),
) -> None:
    """Print a table on stdout; if stdout is not a terminal, it is as wide as its cells.

    If it does not fit, cells are wrapped. If words would be broken, it is drawn without lines
    first. A long table is printed as plain columns: drawing a thousand rows takes longer than
    computing them.

    Args:
        title: The title.
        head: The columns' names.
        rows: Their cells.
        whole: Columns, in addition to the first, whose words are never broken, at any width: names
            that users copy.
    """
    from rich.cells import cell_len

    cells = [["" if cell is None else str(cell) for cell in row] for row in (head, *rows)]
    columns = [*zip(*cells, strict=True)]
    natural = [max(map(cell_len, column)) for column in columns]
    if len(rows) > LONG:
        _columns(title, cells, natural)
        return
    words = [max((cell_len(w) for c in column for w in c.split()), default=0) for column in columns]
    room, lines = _width(), 3 * len(head) + 1
    if sum(words) + lines <= room:
        _draw(title, cells, _fit(natural, words, room=room - lines))
        return
    room -= 2 * (len(head) - 1)
    named = [n == 0 or name in whole for n, name in enumerate(head)]
    least = [w if stays else min(w, NARROW) for w, stays in zip(words, named, strict=True)]
    _columns(title, cells, _fit(_fit(natural, words, room=room), least, room=room))


def _width() -> int:
    """Return the width of the terminal; 160 characters if stdout is not one."""
    from rich.console import Console

    return Console().width if sys.stdout.isatty() else 160


def _fit(widths: Sequence[int], least: Sequence[int], *, room: int) -> list[int]:
    """Shrink the widest columns until all fit, none below its least width; return the widths."""
    fitted = list(widths)
    while sum(fitted) > room:
        loose = [n for n, width in enumerate(fitted) if width > least[n]]
        if not loose:
            break
        fitted[max(loose, key=fitted.__getitem__)] -= 1
    return fitted


def _draw(title: str, cells: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # No terminal codes, even on a terminal: they would look like codes in a package's text.
    console = Console(force_terminal=False, width=sum(widths) + 3 * len(widths) + 1)
    drawn = Table(title=Text(title), title_justify="left")
    for n, (name, width) in enumerate(zip(cells[0], widths, strict=True)):
        justify: JustifyMethod = "left" if n == 0 else "default"
        drawn.add_column(Text(name), overflow="fold", justify=justify, width=width)
    for row in cells[1:]:
        drawn.add_row(*map(Text, row))
    console.print(drawn)


def _columns(title: str, cells: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    from rich.cells import cell_len, set_cell_size
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=False)

    def wrapped(cell: str, width: int) -> list[str]:
        if cell_len(cell) <= width:
            return [cell]
        return [str(line) for line in Text(cell).wrap(console, width, overflow="fold")]

    click.echo(title)
    for row in cells:
        for line in zip_longest(*map(wrapped, row, widths), fillvalue=""):
            click.echo("  ".join(map(set_cell_size, line, widths)).rstrip())
