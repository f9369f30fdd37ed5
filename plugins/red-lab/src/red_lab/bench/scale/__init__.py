"""Section `scale`: the cost of recompose, memory and a query with 1 to 1,000 experts.

Every point is a separate process, on packages that are really installed (`packages`), each with its
own domain (`family`). Packages and finished points are kept in the work folder, so a stopped run
resumes. Takes a quarter of an hour on two cores, half of it for making the packages.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from red_lab.bench.scale.family import SIZES, SumDomain
from red_lab.bench.scale.page import draw, page
from red_lab.bench.section import SectionSettings
from redhost.registry.environment import python_command

__all__ = ["TITLE", "draw", "measure", "page"]

TITLE = "Recompose at scale"

COUNTS = (1, 10, 100, 1000)


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Measure every point of the curve, then one expert more than at the last point."""
    from red_lab.bench.scale.packages import SLICES, install

    work = settings.work / "scale"
    work.mkdir(parents=True, exist_ok=True)
    sites = install(work, _backbone(), count=SLICES[-1][1])
    points = {str(n): _point(work, sites, n, runs=settings.runs) for n in COUNTS}
    more = {level: _more(work, sites, level=level) for level in ("full", "row")}
    for file in work.glob("*.json"):  # the next run measures anew; packages stay
        file.unlink()
    return {"points": points, "one_more": more, "rows_a_domain": dict(SIZES)}


def _point(work: Path, sites: Sequence[Path], count: int, *, runs: int) -> dict[str, Any]:
    """Measure one point, unless an interrupted run already did."""
    file, home = work / f"point-{count}.json", work / f"home-{count}"
    if not file.exists():
        shutil.rmtree(home, ignore_errors=True)
        for other in _others():
            _run(["-m", "redhost", "disable", other, "--home", str(home)], ())
        from red_lab.bench.scale.packages import SLICES

        found = [s for s, (first, _) in zip(sites, SLICES, strict=True) if first < count]
        module = "red_lab.bench.scale.point"
        _run(["-m", module, str(count), str(home), f"{file}.new", str(runs)], found)
        Path(f"{file}.new").replace(file)
    return dict(json.loads(file.read_text("utf-8")))


def _more(work: Path, sites: Sequence[Path], *, level: str) -> dict[str, Any]:
    """Attach one more expert to a copy of the last point's home."""
    file, home = work / f"more-{level}.json", work / f"home-more-{level}"
    if not file.exists():
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(work / f"home-{COUNTS[-1]}", home)
        module, expert = "red_lab.bench.scale.more", SumDomain(COUNTS[-1]).id
        _run(["-m", module, expert, str(home), f"{file}.new", level], sites)
        Path(f"{file}.new").replace(file)
    return dict(json.loads(file.read_text("utf-8")))


def _run(arguments: Sequence[str], sites: Sequence[Path]) -> None:
    """Run this Python with sites on its path; its output goes to the terminal."""
    path = os.pathsep.join([*map(str, sites), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run(  # noqa: S603  (our own command)
        python_command(*arguments), check=True, env=environment, stdout=subprocess.DEVNULL
    )


def _others() -> list[str]:
    """Return the experts that are installed here and do not belong to the family."""
    return sorted(point.name for point in entry_points(group="redhost.experts"))


def _backbone() -> Path:
    spec = find_spec("red_backbone_tiny")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("red_backbone_tiny is not installed; run 'make demo' first")
    return Path(spec.origin).parent
