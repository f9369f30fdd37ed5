"""Section `startup`: the time that the command line and recompose take.

Whole processes, warm, in turn. Machines are noisy, so read ratios: a bare `python -c pass` and the
bare imports are timed in the same rounds. Takes some ten minutes. A home with a thousand composed
experts is made first, once, if the work folder has none.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from red_lab.bench.processes import PYTHON, REDHOST, Process, Seen, take_turns
from red_lab.bench.rounds import spread
from red_lab.bench.section import SectionSettings
from redhost.testing import Environment

__all__ = ["TITLE", "idle_home", "install_copies", "measure", "page"]

TITLE = "Start-up time of commands"

INSTALLED = (100, 1000)
IDLE = (10, 100, 1000)
SPARSE = "shortlist"
QUESTION = "What is 37 plus 12?"
SOURCE = "red_expert_range1"

FLOOR = "import torch; from transformers.models.qwen3.modeling_qwen3 import Qwen3Model"
"""The imports that a Qwen3 forward pass in transformers needs."""

WHOLE = """
import gc, sys
import redhost
gc.disable()
Host = redhost.Host
gc.freeze()
gc.enable()
Host.open(sys.argv[1]).composed.answer([sys.argv[2]])
"""
"""The same answer after reading every expert of the generation; imports are as in a command."""


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Time the commands."""
    homes = {n: idle_home(settings.work, n) for n in IDLE}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for n in INSTALLED:
            install_copies(root / f"site{n}", n)
        _run([*REDHOST, "recompose", "--home", str(root / "warm")])
        processes = {**_commands(root), **_idle(homes)}
        seen = take_turns(processes, rounds=settings.runs)
        levels = _levels(root / "warm")
    seconds = {name: [s.seconds for s in runs] for name, runs in seen.items()}
    for name, floor in (("predict_ours", "predict_floor"), ("predict_beyond_torch", "torch")):
        pairs = zip(seconds["predict"], seconds[floor], strict=True)
        seconds[name] = [took - least for took, least in pairs]
    spreads = {name: spread(values) for name, values in seconds.items()}
    return {
        "runs": settings.runs,
        "seconds": spreads,
        "median_seconds": {name: s["median"] for name, s in spreads.items()},
        "times_python": {n: s["median"] / spreads["python"]["median"] for n, s in spreads.items()},
        "idle": {str(n): _idle_costs(seen, n) for n in IDLE},
        "levels": levels,
    }


def page(found: Mapping[str, Any]) -> str:
    """Return the section's tables."""
    lines = ["| whole process | seconds | quartiles | × bare Python |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {x['median']:.3f} | {x['low']:.3f}–{x['high']:.3f} "
        f"| {found['times_python'][name]:.1f} |"
        for name, x in sorted(found["seconds"].items())
    ]
    lines += [
        "",
        "`predict_floor` imports what a Qwen3 forward pass in transformers needs, `torch` imports "
        "torch alone. `predict_ours` and `predict_beyond_torch` are the additional time of "
        "`predict` over these two, computed within each round. It can be negative, since redhost "
        "builds the packaged trunk without importing transformers.",
        "",
        f"| composed experts, router `{SPARSE}` | predict, s | peak memory, MiB "
        "| reading every expert, s | peak memory, MiB |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {n} | {x['lazy']['median']:.2f} | {x['lazy_peak']:.0f} "
        f"| {x['whole']['median']:.2f} | {x['whole_peak']:.0f} |"
        for n, x in sorted(found["idle"].items(), key=lambda pair: int(pair[0]))
    ]
    lines += ["", "| router, level | router, s | recompose, s | accuracy on gate rows |"]
    lines += ["|---|---|---|---|"]
    lines += [
        f"| {name} | {x['router_seconds']:.4f} | {x['recompose_seconds']:.2f} "
        f"| {x['gate_accuracy']:.3f} |"
        for name, x in sorted(found["levels"].items())
    ]
    return "\n".join(lines)


def install_copies(site: Path, count: int) -> None:
    """Put copies of a shipped expert, each with its own id, into a folder."""
    spec = find_spec(SOURCE)
    if spec is None or spec.origin is None:
        raise FileNotFoundError(f"{SOURCE} is not installed; run 'make demo' first")
    source = Path(spec.origin).parent
    for n in range(count):
        module, dist = f"bench_expert_{n}", f"bench-expert-{n}"
        shutil.copytree(source, site / module, ignore=shutil.ignore_patterns("__pycache__"))
        (site / module / "__init__.py").write_text("raise AssertionError('imported')\n")
        manifest = json.loads((site / module / "expert.json").read_bytes())
        # With another id, the shipped expert's own domain would count as another expert's.
        manifest |= {"id": f"bench{n}", "off_domain": None}
        (site / module / "expert.json").write_text(json.dumps(manifest))
        points = {"redhost.experts": f"bench{n} = {module}"}
        Environment(site).write_info(dist, "1.0", module, points)


def idle_home(work: Path, count: int) -> Path:
    """Return a home with so many copies composed under a sparse router; make it if needed."""
    home = work / "idle" / str(count) / "home"
    if not (home / "current").exists():
        shutil.rmtree(home.parent, ignore_errors=True)
        install_copies(home.parent / "site", count)
        command = [*REDHOST, "recompose", "--router", SPARSE, "--home", str(home)]
        _run(command, env={"PYTHONPATH": str(home.parent / "site")})
        shutil.rmtree(home.parent / "site")
    return home


def _commands(root: Path) -> dict[str, Process]:
    """Return the commands that are timed, and the baselines."""
    home = str(root / "warm")
    listing = [*REDHOST, "list-experts", "--json", "--home"]
    commands = {
        "python": Process(command=[*PYTHON, "pass"]),
        "torch": Process(command=[*PYTHON, "import torch"]),
        "predict_floor": Process(command=[*PYTHON, FLOOR]),
        "help": Process(command=[*REDHOST, "--help"]),
        "predict": Process(command=[*REDHOST, "predict", "--json", "--home", home, QUESTION]),
        "recompose_cold": _fresh([*REDHOST, "recompose", "--json"], root / "cold"),
    }
    for n in INSTALLED:
        env, seen = {"PYTHONPATH": str(root / f"site{n}")}, str(root / f"seen{n}")
        commands[f"list_experts_{n}"] = Process(command=[*listing, seen], env=env)
        commands[f"list_experts_{n}_first"] = _fresh(listing[:-1], root / "unseen", env=env)
    return commands


def _fresh(command: Sequence[str], home: Path, *, env: Mapping[str, str] | None = None) -> Process:
    """Return a command that runs with cold caches."""
    forget = partial(shutil.rmtree, home, ignore_errors=True)
    return Process(command=[*command, "--home", str(home)], env=env or {}, before=forget)


def _idle(homes: Mapping[int, Path]) -> dict[str, Process]:
    """Return predict with few and many composed experts, reading only the needed or all experts."""
    lazily = {
        f"predict_of_{n}": Process(command=[*REDHOST, "predict", "--home", str(home), QUESTION])
        for n, home in homes.items()
    }
    whole = {
        f"predict_of_{n}_whole": Process(command=[*PYTHON, WHOLE, str(home), QUESTION])
        for n, home in homes.items()
    }
    return {**lazily, **whole}


def _idle_costs(seen: Mapping[str, Sequence[Seen]], n: int) -> dict[str, Any]:
    lazily, whole = seen[f"predict_of_{n}"], seen[f"predict_of_{n}_whole"]
    return {
        "lazy": spread([s.seconds for s in lazily]),
        "lazy_peak": spread([s.peak for s in lazily])["median"],
        "whole": spread([s.seconds for s in whole]),
        "whole_peak": spread([s.peak for s in whole])["median"],
    }


def _levels(home: Path) -> dict[str, dict[str, float]]:
    """Return the router's seconds and accuracy for each kind and level, features cached."""
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
        command = [*REDHOST, "recompose", "--router", kind, "--level", level, "--json"]
        receipt = json.loads(_run([*command, "--home", str(home)]))
        found[f"{kind} {level}"] = {
            "router_seconds": receipt["router"]["seconds"],
            "recompose_seconds": receipt["seconds"],
            "gate_accuracy": receipt["accuracy"]["overall"],
        }
    return found


def _run(command: Sequence[str], *, env: Mapping[str, str] | None = None) -> bytes:
    return subprocess.run(  # noqa: S603  (our own command)
        command, check=True, capture_output=True, env={**os.environ, **(env or {})}
    ).stdout
