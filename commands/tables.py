"""Tables on stdout, in which names stay whole in a narrow terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Collection, Sequence
from itertools import zip_longest

import click

LONG = 200
"""Rows above which a table is printed as plain columns."""

NARROW = 6
"""Least width of a column, in characters, in any terminal."""

NO_TERMINAL = 160
"""Width of a table, in characters, where stdout is no terminal, and of a text beside its answer."""


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
        _print(title, cells, natural, frame=False)
        return
    words = [max((cell_len(w) for c in column for w in c.split()), default=0) for column in columns]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else NO_TERMINAL
    lines = 3 * len(head) + 1
    if sum(words) + lines <= room:
        _print(title, cells, _fit(natural, words, room=room - lines), frame=True)
        return
    room -= 2 * (len(head) - 1)
    named = [n == 0 or name in whole for n, name in enumerate(head)]
    least = [w if stays else min(w, NARROW) for w, stays in zip(words, named, strict=True)]
    _print(title, cells, _fit(_fit(natural, words, room=room), least, room=room), frame=False)


def _fit(widths: Sequence[int], least: Sequence[int], *, room: int) -> list[int]:
    """Shrink the widest columns until all fit, none below its least width; return the widths."""
    fitted = list(widths)
    while sum(fitted) > room:
        loose = [n for n, width in enumerate(fitted) if width > least[n]]
        if not loose:
            break
        fitted[max(loose, key=fitted.__getitem__)] -= 1
    return fitted


def _print(
    title: str, cells: Sequence[Sequence[str]], widths: Sequence[int], *, frame: bool
) -> None:
    """Print rows of cells, wrapped at the columns' widths, in a frame or as plain columns.

    No terminal codes, even on a terminal: they would look like codes in a package's text.
    """
    from rich.cells import set_cell_size

    def line(left: str, middle: str, right: str, *, fill: str) -> None:
        if frame:
            click.echo(left + middle.join(fill * (width + 2) for width in widths) + right)

    click.echo(title)
    line("┏", "┳", "┓", fill="━")
    for number, row in enumerate(cells):
        side = "┃" if number == 0 else "│"
        for parts in zip_longest(*map(_wrapped, row, widths), fillvalue=""):
            padded = map(set_cell_size, parts, widths)
            inner = f" {side} ".join(padded) if frame else "  ".join(padded).rstrip()
            click.echo(f"{side} {inner} {side}" if frame else inner)
        if number == 0:
            line("┡", "╇", "┩", fill="━")
    line("└", "┴", "┘", fill="─")


def _wrapped(cell: str, width: int) -> list[str]:
    from rich.cells import cell_len

    if cell_len(cell) <= width and cell.isprintable():
        return [cell]
    from rich.console import Console
    from rich.text import Text

    console = Console(force_terminal=False)
    return [str(part) for part in Text(cell).wrap(console, width, overflow="fold")]
