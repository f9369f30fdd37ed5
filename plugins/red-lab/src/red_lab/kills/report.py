"""Write the metrics of `redhost lab kills` as a page that people read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["write_page"]


def write_page(metrics: Mapping[str, Any], path: Path) -> None:
    """Write a Markdown page for metrics of the schema ``red-lab.kills/1``."""
    rows = (
        ("before, within and after every write, sync, rename and removal", metrics["steps"]),
        (f"at random within {metrics['random']['longest']:.2f} s", metrics["random"]),
    )
    lines = [
        "# Kills",
        "",
        "Written by `redhost lab kills` from `metrics.json`; do not edit.",
        "",
        "A process that runs `redhost recompose` on the five shipped experts is killed with signal",
        "9. Then a new host opens the home: the old or the new generation must be current, every",
        "stored byte of it must be sound, it must answer, and after the next writer nothing",
        "partial may be left.",
        "",
        f"**{metrics['kills']:,} kills, {metrics['bad']} bad.**",
        "",
        "| killed | kills | after the new generation was current | bad |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {title} | {found['kills']:,} | {found['new_generation_current']:,} "
        f"| {len(found['bad'])} |"
        for title, found in rows
    ]
    path.write_text("\n".join([*lines, ""]), "utf-8")
