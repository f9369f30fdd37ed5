"""Section `engine`: the speed-up of two workers, and the overhead of a job.

Training is timed as whole commands, start-up of every worker and all writing included, alternately
in the same rounds: 20 experts of 1,500 rows on the tiny backbone with one worker, with two, and
with two of Ray where it is installed. Empty jobs show the overhead of an engine.

Alternating does not help on a busy machine, where two processes get a larger share than one. The
processor time of the commands is therefore measured too: if one worker gets less than .9 of a core,
the ratios are meaningless, and the page reports that.

On a quiet machine with two cores a round takes about three minutes with Ray, two without:
``redhost lab bench engine --runs 3``.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redhost_ray.jobs
from redhost_ray.functions import verify_package

import redhost
from red_lab.bench.section import SectionSettings
from redhost.core.types import write_rows
from redhost.registry.environment import python_command
from redhost.registry.errors import JobsError

__all__ = ["TITLE", "measure", "page", "write_plan"]

TITLE = "Several workers"

EXPERTS, ROWS, EPOCHS = 20, 1500, 60
JOBS, SHARED = 200, 2**20
IDLE_CORES = 0.9
"""Cores that one worker keeps busy on an otherwise idle machine."""


def measure(settings: SectionSettings) -> dict[str, Any]:
    """Time the pools and the jobs; every round trains all experts again and compares digests."""
    pools = {"local, 1 worker": ("local", 1), "local, 2 workers": ("local", 2)}
    if find_spec("ray") and find_spec("redhost_ray"):
        pools["ray, 2 workers"] = ("ray", 2)
    rounds = _rounds(pools, settings.runs)
    alone = rounds["seconds"]["local, 1 worker"]
    return {
        "experts": EXPERTS,
        "rows": ROWS,
        "epochs": EPOCHS,
        "runs": settings.runs,
        **rounds,
        "quiet": statistics.median(rounds["cores"]["local, 1 worker"]) >= IDLE_CORES,
        "speedup": {pool: _ratios(alone, took) for pool, took in rounds["seconds"].items()},
        "overhead": {pool: _overhead(*choice) for pool, choice in pools.items()},
    }


def _rounds(pools: Mapping[str, tuple[str, int]], runs: int) -> dict[str, Any]:
    """Train all experts with every pool in turn: seconds, cores used, whether bytes differ."""
    seconds: dict[str, list[float]] = {pool: [] for pool in pools}
    cores: dict[str, list[float]] = {pool: [] for pool in pools}
    digests: set[str] = set()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {**os.environ, "REDHOST_CONFIG": str(folder / "config")}
        if any(engine == "ray" for engine, _ in pools.values()):
            _run(["trust", "redhost-ray"], env)
        plan = write_plan(folder, experts=EXPERTS, rows=ROWS, epochs=EPOCHS)
        for n in range(runs):
            for pool, (engine, workers) in pools.items():
                command = ["train-many", str(plan), "--engine", engine, "--workers", str(workers)]
                before = _processor_seconds()
                took = _run([*command, "--home", str(folder / f"{n} {pool}")], env)
                seconds[pool].append(took)
                cores[pool].append((_processor_seconds() - before) / took)
                digests.add(_digest(folder))
    return {"seconds": seconds, "cores": cores, "identical": len(digests) == 1}


def page(found: Mapping[str, Any]) -> str:
    """Return the section's tables."""
    same = "the same" if found["identical"] else "NOT the same"
    lines = [
        f"{found['experts']} experts of {found['rows']} rows are trained by `redhost train-many`; "
        f"whole commands are timed. Rounds: {found['runs']}. The experts' bytes are {same} in all "
        "pools.",
        "",
        "| pool | seconds | speed-up over one worker (quartiles) | cores used | first result, s "
        "| ms per job |",
        "|---|---|---|---|---|---|",
    ]
    for pool, seconds in found["seconds"].items():
        low, middle, high = found["speedup"][pool]
        cost = found["overhead"][pool]
        used = statistics.median(found["cores"][pool])
        lines.append(
            f"| {pool} | {statistics.median(seconds):.1f} | {middle:.2f} ({low:.2f}–{high:.2f}) "
            f"| {used:.2f} | {cost['first']:.2f} | {1000 * cost['each']:.2f} |"
        )
    lines += [
        "",
        "Cores used covers the processes that the command waits for; Ray's workers are not among "
        "them. The last two columns are measured with empty jobs that share an input of 1 MiB.",
    ]
    if not found["quiet"]:
        lines += ["", "**The machine was busy with other work: these ratios are meaningless.**"]
    return "\n".join(lines)


def write_plan(folder: Path, *, experts: int, rows: int, epochs: int) -> Path:
    """Write projects, their rows and a plan that trains them; return the plan.

    Args:
        folder: The folder to write to.
        experts: Number of experts.
        rows: Rows of each expert.
        epochs: Most epochs of each expert.
    """
    lines = []
    for n in range(experts):
        expert = f"bench{n}"
        command = ["new-expert", expert, "--backbone", "tiny"]
        _run(command, dict(os.environ), folder)
        made = [
            redhost.Row(text=f"What is {a} plus {n}?", label=f"{(a * a + n) % 10}")
            for a in range(rows)
        ]
        (folder / f"{expert}.jsonl").write_bytes(write_rows(made))
        project = f"red-expert-{expert}"
        lines.append({"dir": project, "data": f"{expert}.jsonl", "epochs": epochs, "seed": n})
    plan = folder / "plan.jsonl"
    plan.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")
    return plan


def _overhead(engine: str, workers: int) -> dict[str, float]:
    """Return the seconds until the first of many empty jobs is done, and per further job."""
    jobs = redhost_ray.jobs.JobBatch()
    shared = jobs.put("shared", {"input": bytes(SHARED)})
    for n in range(JOBS):
        jobs.add(f"job {n}", verify_package, {"n": n}, shared)  # no expert: nothing to compute
    start = time.perf_counter()
    done: list[float] = []

    def on_result(_: redhost_ray.jobs.Job, __: Mapping[str, bytes]) -> None:
        done.append(time.perf_counter() - start)

    failures = _worker_pool(engine, workers).run(jobs, on_result)
    if failures:
        raise JobsError(f"{len(failures)} empty jobs failed", found=failures[0].reason)
    return {"first": done[0], "each": (done[-1] - done[0]) / (JOBS - 1)}


def _worker_pool(engine: str, workers: int) -> redhost_ray.jobs.WorkerPool:
    if engine != "ray":
        return redhost_ray.jobs.choose_pool(
            redhost.plugins.Plugins(()), engine=engine, workers=workers
        )
    from redhost_ray.engine import RayEngine  # this process trusts it by importing it

    return redhost_ray.jobs.WorkerPool(name=engine, engine=RayEngine(), workers=workers)


def _ratios(base: Sequence[float], other: Sequence[float]) -> list[float]:
    """Return the lower quartile, the median and the upper quartile of the speed-up."""
    ratios = [b / o for b, o in zip(base, other, strict=True)]
    if len(ratios) == 1:
        return ratios * 3
    return statistics.quantiles(ratios, n=4, method="inclusive")


def _processor_seconds() -> float:
    """Return the processor time of all finished child processes."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def _digest(folder: Path) -> str:
    files = sorted(folder.glob("red-expert-*/src/*/expert.json"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in files)).hexdigest()


def _run(arguments: Sequence[str], env: Mapping[str, str], folder: Path | None = None) -> float:
    start = time.perf_counter()
    done = subprocess.run(  # noqa: S603  (our own command)
        python_command("-m", "redhost", *arguments),
        check=False,
        capture_output=True,
        text=True,
        env=env,
        cwd=folder,
    )
    if done.returncode:
        raise JobsError(f"redhost {' '.join(arguments)} failed", found=done.stderr.strip())
    return time.perf_counter() - start
