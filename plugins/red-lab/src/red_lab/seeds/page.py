"""Write the page of the seeds' rows, with one table for each seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from red_lab.seeds.table import SEEDS, STATUSES, Row

__all__ = ["page"]


def page(rows: Sequence[Row], results: Path) -> str:
    """Return the page; its figures are read from the results files.

    Raises:
        redhost.MissingError: If a figure is missing.
        redhost.UsageError: If a sentence no longer agrees with its figures.
    """
    lines = [
        "# The four seeds, row by row",
        "",
        "Written by `redhost lab seeds` from its list of rows and the metrics of this folder; "
        "do not edit.",
        "",
        "The seeds are the four texts that redhost was built from ([departures]"
        f"(../departures.md)). The tables list {len(rows)} claims and requirements. Figures are "
        "read from the results files, and comparisons in a row are checked against them when the "
        "page is written. Figures within a claim are the seed's own.",
        "",
        *(f"- **{status}**: {meaning}." for status, meaning in STATUSES.items()),
        "",
        *_counts(rows),
    ]
    for seed, title in SEEDS.items():
        lines += [f"## {seed}: {title}", "", "| § | claim | status | where | shown by |"]
        lines.append("|---" * 5 + "|")
        lines += [_line(row, results) for row in rows if row.seed == seed]
        lines.append("")
    return "\n".join(lines)


def _counts(rows: Sequence[Row]) -> list[str]:
    counts = Counter((row.seed, row.status) for row in rows)
    lines = [f"| seed | {' | '.join(STATUSES)} | rows |", "|---" * (len(STATUSES) + 2) + "|"]
    for seed in SEEDS:
        own = [counts[seed, status] for status in STATUSES]
        lines.append(f"| {seed} | {' | '.join(map(str, own))} | {sum(own)} |")
    every = [sum(counts[seed, status] for seed in SEEDS) for status in STATUSES]
    return [*lines, f"| all | {' | '.join(map(str, every))} | {sum(every)} |", ""]


def _line(row: Row, results: Path) -> str:
    values = row.values(results)
    where = [f"`{name}`" for name in (*row.commands, *row.code)]
    shown = "; ".join(f"{f.name}: {values[f.name]:{f.form}}" for f in row.figures)
    links = [f"[{_title(row.page)}]({row.page})"] if row.page else []
    links += [f"[why]({row.reason})"] if row.reason else []
    parts = [part for part in (shown, row.note, ", ".join(links)) if part]
    status = row.status if row.status == "works" else f"**{row.status}**"
    cells = (row.section, row.claim, status, ", ".join(where), ". ".join(parts))
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _title(target: str) -> str:
    file = target.partition("#")[0].removeprefix("../").removesuffix(".md")
    return file.removesuffix("/README")
