"""Section `startup`: time what people wait for, the command line and recompose.

Whole processes, warm, the median of several runs; machines are noisy, so read ratios: a bare
`python -c pass` is timed beside the rest, in the same rounds.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from red_lab.bench.section import Settings
from redhost.testing import Environment

__all__ = ["TITLE", "install_copies", "measure", "page"]

TITLE = "What people wait for"

COPIES = 100
SOURCE = "red_expert_range1"


def measure(settings: Settings) -> dict[str, Any]:
    """Time the commands; the first round, which warms files up, is not counted."""
    with tempfile.TemporaryDirectory() as folder:
        site, home = Path(folder, "site"), Path(folder, "home")
        install_copies(site, COPIES)
        python = [sys.executable, "-m", "redhost"]
        commands: dict[str, Sequence[str]] = {
            "python": [sys.executable, "-c", "pass"],
            "help": [*python, "--help"],
            "list_experts_100": [*python, "list-experts", "--json", "--home", str(home)],
            "recompose_cold": [*python, "recompose", "--json", "--home", str(home / "cold")],
            "predict": [*python, "predict", "--json", "--home", str(home / "warm"), "What is 1?"],
        }
        _once([*python, "recompose", "--home", str(home / "warm")], {})
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(settings.runs + 1):
            for name, command in commands.items():
                shutil.rmtree(home / "cold", ignore_errors=True)
                extra = {"PYTHONPATH": str(site)} if name.startswith("list") else {}
                seconds[name].append(_once(command, extra))
        levels = _levels(home / "warm", python)
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    return {
        "runs": settings.runs,
        "median_seconds": medians,
        "times_python": {name: m / medians["python"] for name, m in medians.items()},
        "levels": levels,
    }


def page(found: Mapping[str, Any]) -> str:
    """Return the section's tables."""
    lines = ["| whole process | seconds | × bare Python |", "|---|---|---|"]
    lines += [
        f"| {name} | {found['median_seconds'][name]:.3f} | {times:.1f} |"
        for name, times in sorted(found["times_python"].items())
    ]
    lines += ["", "| router, level | router seconds | recompose seconds | gate rows |"]
    lines += ["|---|---|---|---|"]
    lines += [
        f"| {name} | {x['router_seconds']:.4f} | {x['recompose_seconds']:.2f} "
        f"| {x['gate_accuracy']:.3f} |"
        for name, x in sorted(found["levels"].items())
    ]
    return "\n".join(lines)


def install_copies(site: Path, count: int) -> None:
    """Put copies of a shipped expert, each under an id of its own, into a folder."""
    spec = find_spec(SOURCE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{SOURCE} is not installed; run 'make demo' first")
    source = Path(spec.origin).parent
    for n in range(count):
        module, dist = f"bench_expert_{n}", f"bench-expert-{n}"
        shutil.copytree(source, site / module, ignore=shutil.ignore_patterns("__pycache__"))
        (site / module / "__init__.py").write_text("raise AssertionError('imported')\n")
        manifest = json.loads((site / module / "expert.json").read_bytes())
        manifest["id"] = f"bench{n}"
        (site / module / "expert.json").write_text(json.dumps(manifest))
        points = {"redhost.experts": f"bench{n} = {module}"}
        Environment(site).write_info(dist, "1.0", module, points)


def _levels(home: Path, python: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the router's seconds and rows for each kind and level, features cached."""
    found = {}
    for kind, level in (
        ("evidence", "full"),
        ("evidence", "row"),
        ("statistics", "full"),
        ("statistics", "zero"),
        ("linear", "full"),
        ("mlp", "full"),
        ("mlp", "row"),
    ):
        command = [*python, "recompose", "--router", kind, "--level", level, "--json"]
        answer = subprocess.run(  # noqa: S603  (our own command)
            [*command, "--home", str(home)], check=True, capture_output=True
        )
        receipt = json.loads(answer.stdout)
        found[f"{kind} {level}"] = {
            "router_seconds": receipt["router"]["seconds"],
            "recompose_seconds": receipt["seconds"],
            "gate_accuracy": receipt["accuracy"]["overall"],
        }
    return found


def _once(command: Sequence[str], extra: Mapping[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(  # noqa: S603  (our own command)
        command, check=True, capture_output=True, env={**os.environ, **extra}
    )
    return time.perf_counter() - start
