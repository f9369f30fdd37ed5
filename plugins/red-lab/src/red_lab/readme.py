"""Render the generated blocks of README and docs from results files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from red_lab.bench.section import page

__all__ = [
    "BLOCKS",
    "PAGES",
    "install_block",
    "refresh",
    "refresh_here",
    "text_block",
]


def text_block(metrics: Mapping[str, Any]) -> str:
    """Return the README's table of teams on real texts."""
    corpora = {name: m for name, m in metrics["tasks"].items() if "-" not in name}
    titles = {
        "": "best model of words and states, pooled rows",
        "pooled tf-idf": "logistic regression on word counts (no encoder), pooled rows",
        "default": "**the teams' experts, `redhost recompose`**",
        "linear": "experts that do not read words",
        "counts and ridge": "no expert: cards and counts alone",
        "ridge alone": "no expert: cards alone",
        "random": "experts with shuffled parameters",
        "oracle": "experts, oracle routing (label-informed)",
    }
    lines = [f"| accuracy | {' | '.join(corpora)} |", "|---" * (len(corpora) + 1) + "|"]
    for key, title in titles.items():
        cells = (m["systems"][key or m["best"]]["accuracy"]["mean"] for m in corpora.values())
        lines.append(f"| {title} | {' | '.join(f'{a:.3f}' for a in cells)} |")

    def away(other: str) -> str:
        pairs = ((m["systems"], other or m["best"]) for m in corpora.values())
        means = ((s["default"]["accuracy"]["mean"], s[x]["accuracy"]["mean"]) for s, x in pairs)
        return ", ".join(f"{100 * (a - b):+.1f}" for a, b in means)

    note = (
        f"Test rows: {', '.join(str(m['rows']) for m in corpora.values())}. Points above "
        f"the best pooled model: {away('')}; above cards and counts: "
        f"{away('counts and ridge')}. [All figures](docs/results/text/README.md)."
    )
    return "\n".join([*lines, "", note])


def install_block(found: Mapping[str, Any]) -> str:
    """Return the README's sentence on the size and time of an installation."""
    demo, dev = (
        {key: sum(step[key] for step in found["steps"][kind]) for key in ("mib", "seconds")}
        for kind in ("demo", "dev")
    )
    torch = found["steps"]["demo"][0]
    sizes = f"{demo['mib']:,} MiB ({torch['mib']:,} for torch) and {dev['mib']:,} MiB more"
    times = f"in {demo['seconds']:,} and {dev['seconds']:,} seconds"
    return (
        f"They install {sizes}, [{times}](docs/results/install/README.md); "
        "a second run installs nothing."
    )


PAGES = ("README.md", "docs/profiles.md", "docs/scale.md")
"""Pages that contain blocks."""

BLOCKS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "text": ("docs/results/text/metrics.json", text_block),
    "install": ("docs/results/install/metrics.json", install_block),
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
            body = write(json.loads(path.read_text("utf-8")))
            text = f"{before}{start}{body}\n{end}{after}"
    return text


def refresh_here() -> None:
    """Refresh the blocks in the pages of the current folder, if it has them."""
    for path in map(Path, PAGES):
        if path.exists() and "<!-- results: " in path.read_text("utf-8"):
            path.write_text(refresh(path.read_text("utf-8"), root=Path()), "utf-8")
