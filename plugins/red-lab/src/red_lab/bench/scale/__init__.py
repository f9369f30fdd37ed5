"""Section `scale`: the cost of recompose, memory and a query with 1 to 1,000 experts.

Every point is a separate process, on packages that are really installed, each with its own domain
(`family`). Packages and finished points are kept in the work folder, so a stopped run resumes.
Takes a quarter of an hour on two cores, half of it for making the packages.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from red_lab.bench import Section, SectionSettings
from red_lab.bench.processes import ask, run_command
from red_lab.bench.scale.family import SIZES, SLICES, SumDomain, install
from red_lab.metrics import cached_json, drawing
from red_lab.ranges import shipped
from redhost.registry.environment import python_command

__all__ = ["SECTION"]

COUNTS = (1, 10, 100, 1000)


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Measure every point of the curve, then one expert more than at the last point."""
    work = (settings.work / "scale").absolute()
    work.mkdir(parents=True, exist_ok=True)
    folders = install(work, shipped()[0], count=SLICES[-1][1])
    points = {}
    for n in COUNTS:
        job = partial(_point, work, folders, n, runs=settings.runs)
        points[str(n)] = cached_json(work / f"point-{n}.json", job)
    more = {}
    for level in ("full", "row"):
        job = partial(_more, work, folders, level=level)
        more[level] = cached_json(work / f"more-{level}.json", job)
    for file in work.glob("*.json"):  # the next run measures anew; packages stay
        file.unlink()
    return {"points": points, "one_more": more, "rows_a_domain": dict(SIZES)}


def _point(work: Path, folders: Sequence[Path], count: int, *, runs: int) -> dict[str, Any]:
    """Measure one point with a new home, in which other experts are disabled."""
    home = work / f"home-{count}"
    shutil.rmtree(home, ignore_errors=True)
    for point in entry_points(group="redhost.experts"):
        run_command(python_command("-m", "redhost", "disable", point.name, "--home", str(home)))
    chosen = [s for s, (first, _) in zip(folders, SLICES, strict=True) if first < count]
    return ask("scale.point:measure", sites=chosen, count=count, home=str(home), runs=runs)


def _more(work: Path, folders: Sequence[Path], *, level: str) -> dict[str, Any]:
    """Attach one more expert to a copy of the last point's home."""
    home, expert = work / f"home-more-{level}", SumDomain(COUNTS[-1]).id
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(work / f"home-{COUNTS[-1]}", home)
    return ask("scale.point:add_one", sites=folders, expert=expert, home=str(home), level=level)


def draw(found: Mapping[str, Any], folder: Path) -> None:
    """Draw seconds, memory and a query's cost against the number of experts."""
    counts = sorted(map(int, found["points"]))
    points = [found["points"][str(n)] for n in counts]
    size: dict[str, Any] = {
        "figsize": (11, 3.2),
        "layout": "tight",
        "ncols": 3,
        "settings": {"font.size": 10},
    }
    with drawing(folder / "scale.svg", salt="scale", **size) as [[seconds, memory, query]]:
        for name in ("cold", "warm", "row"):
            seconds.loglog(counts, [p["seconds"][name] for p in points], "o-", label=name)
        seconds.set_ylabel("seconds to recompose")
        seconds.legend()
        memory.semilogx(counts, [p["peak_gib"] for p in points], "o-")
        memory.set_ylabel("peak memory, GiB")
        memory.set_ylim(bottom=0)
        for batch in points[0]["query_ms"]:
            pairs = (p["query_ms"][batch] for p in points)
            ratios = [pair["bus"] / pair["backbone"] for pair in pairs]
            query.semilogx(counts, ratios, "o-", label=f"batch {batch}")
        query.set_ylabel("bus / backbone, a query")
        query.set_ylim(bottom=0)
        query.legend()
        for axes in (seconds, memory, query):
            axes.set_xlabel("experts")


SECTION = Section(name="scale", measure=measure, draw=draw)
