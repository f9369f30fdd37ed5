"""Render the generated blocks of README and docs from results files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from red_lab.bench import page
from red_lab.metrics import render

__all__ = ["BLOCKS", "PAGES", "refresh", "refresh_here"]


TITLES = {
    "": "best model of words and states, pooled rows",
    "pooled tf-idf": "logistic regression on word counts (no encoder), pooled rows",
    "default": "**the teams' experts, `redhost recompose`**",
    "linear": "experts that do not read words",
    "counts and ridge": "no expert: cards and counts alone",
    "ridge alone": "no expert: cards alone",
    "random": "experts with shuffled parameters",
    "oracle": "experts, oracle routing (label-informed)",
}
"""System → its row in the README's table of teams on real texts."""

PAGES = ("README.md", "docs/profiles.md", "docs/scale.md")
"""Pages that contain blocks."""

BLOCKS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "text": ("docs/results/text/metrics.json", partial(render, "readme/text", titles=TITLES)),
    "install": ("docs/results/install/metrics.json", partial(render, "readme/install")),
    "profile": ("docs/results/bench/profile.json", partial(page, "profile")),
    "scale": ("docs/results/bench/scale.json", partial(page, "scale")),
    "growth": ("docs/results/bench/growth.json", partial(page, "growth")),
}
"""Name of a block → its results file, and the function that renders it."""


def refresh(text: str, *, root: Path) -> str:
    """Return a page with every block rendered again whose results file exists.

    A block is the text between ``<!-- results: NAME -->`` and ``<!-- /results -->``.
    """
    for name, (file, write) in BLOCKS.items():
        path = root / file
        if not path.exists():
            continue
        start, end = f"<!-- results: {name} -->\n", "<!-- /results -->"
        before, found, rest = text.partition(start)
        if found:
            _, _, after = rest.partition(end)
            body = write(json.loads(path.read_text("utf-8"))).rstrip("\n")
            text = f"{before}{start}{body}\n{end}{after}"
    return text


def refresh_here() -> None:
    """Refresh the blocks in the pages of the current folder, if it has them."""
    for path in map(Path, PAGES):
        if path.exists() and "<!-- results: " in path.read_text("utf-8"):
            path.write_text(refresh(path.read_text("utf-8"), root=Path()), "utf-8")
