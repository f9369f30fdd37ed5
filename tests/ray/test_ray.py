"""The engine `ray` on real clusters: the same digests everywhere, and dead nodes do no harm."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
import redhost_ray.jobs
from redhost_author.testing import backbone_project
from redhost_ray import engine as engine_module
from redhost_ray import work as work_module
from redhost_ray.engine import RayEngine
from redhost_ray.functions import FUNCTIONS, encode_texts, train_expert
from redhost_ray.job import Job, JobFiles, JobFunction, job_function
from redhost_ray.local import LocalEngine

import redhost
from redhost.core.types import write_rows

pytestmark = pytest.mark.filterwarnings("default")  # Ray's own are not ours to mend


@pytest.fixture(scope="session")
def work(tmp_path_factory: pytest.TempPathFactory) -> redhost_ray.jobs.JobBatch:
    """Shards and experts of a tiny backbone, and one job that cannot succeed."""
    project = backbone_project(tmp_path_factory.mktemp("backbone") / "tiny")
    [package] = (p.parent for p in project.glob("src/*/backbone.json"))
    jobs = redhost_ray.jobs.JobBatch()
    backbone = jobs.put("backbone", {p.name: p.read_bytes() for p in package.glob("*.*")})
    for n in range(3):
        texts = {"texts": [f"text {n} {i}" for i in range(40)], "device": "cpu"}
        jobs.add(f"shard {n}", encode_texts, texts, backbone)
    how = {"epochs": 3, "seed": 0}
    for n in range(4):
        rows = [redhost.Row(text=f"x {n} {i}", label="ab"[i % 2]) for i in range(60)]
        inputs = {**backbone, **jobs.put("rows", {"data": write_rows(rows)})}
        plan = {"id": f"x{n}", "backbone": "tiny-random", "rank": 4, "writes": "labels"}
        jobs.add(f"expert x{n}", train_expert, {"plan": plan, **how}, inputs)
    jobs.add("impossible", train_expert, {"plan": {}, **how}, backbone)
    return jobs


class Counting:
    """An engine that remembers the jobs it started."""

    def __init__(self, engine: redhost_ray.jobs.Engine, *, after=None) -> None:
        self.engine, self.started, self.after = engine, [], after

    def run(self, jobs, *, inputs, workers):
        self.started += [job.name for job in jobs]
        for n, result in enumerate(self.engine.run(jobs, inputs=inputs, workers=workers), start=1):
            yield result
            if self.after is not None:
                self.after(n)


def digests(engine, jobs, *, workers: int = 2, cache=None) -> tuple[dict[str, str], list[str]]:
    """Return the sha256 of every file by job, and the failures."""
    found = {}

    def on_result(job, files) -> None:
        found.update({f"{job.name} {n}": hashlib.sha256(d).hexdigest() for n, d in files.items()})

    pool = redhost_ray.jobs.WorkerPool(name="ray", engine=engine, workers=workers)
    return found, [f.reason for f in pool.run(jobs, on_result, cache=cache)]


@pytest.fixture(scope="session")
def expected(work) -> tuple[dict[str, str], list[str]]:
    """What one worker makes, in this process."""
    made = digests(LocalEngine(), work, workers=1)
    assert len(made[0]) == 3 + 4 * 4 and len(made[1]) == 1
    return made


def test_local_processes_make_the_same(work, expected) -> None:
    assert digests(LocalEngine(), work) == expected


def test_a_ray_of_its_own_makes_the_same_and_is_gone_afterwards(work, expected) -> None:
    assert digests(RayEngine(), work) == expected
    assert not ray.is_initialized()


def test_one_node_makes_the_same(work, expected, nodes) -> None:
    assert digests(RayEngine(), work) == expected


def test_two_nodes_make_the_same(work, expected, nodes) -> None:
    nodes.add()
    assert digests(RayEngine(), work) == expected


def make_echo() -> JobFunction:
    """Make a job function that waits and returns its files.

    Ray imports functions of a module by name, and its workers do not have this one; functions
    made within a function travel whole.
    """

    @job_function("echo", version=1)
    def echo(job: Job, files: JobFiles) -> JobFiles:
        time.sleep(float(job.arguments["seconds"]))
        return {name.rpartition("/")[2]: data for name, data in files.items()}

    return echo


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> JobFunction:
    """A job function of the tests' own, known here and to the workers of Ray."""
    function = make_echo()
    monkeypatch.setitem(FUNCTIONS, function.name, function)

    def do(request: bytes, digests: list[str], *inputs: bytes) -> bytes:
        from redhost_ray.functions import FUNCTIONS  # of the worker

        FUNCTIONS[function.name] = function
        return work_module.do(request, digests, *inputs)

    monkeypatch.setattr(engine_module, "do", do)
    return function


def sleepers(echo: JobFunction, count: int, seconds: float) -> redhost_ray.jobs.JobBatch:
    jobs = redhost_ray.jobs.JobBatch()
    for n in range(count):
        inputs = jobs.put("in", {"text": f"{n}".encode() * 200_000})  # too large to be inlined
        jobs.add(f"sleeper {n}", echo, {"seconds": seconds}, inputs)
    return jobs


def test_a_killed_node_loses_nothing_finished_and_the_rest_is_done(echo, nodes, tmp_path) -> None:
    nodes.add()
    jobs, cache = sleepers(echo, 8, 2), redhost_ray.jobs.JobCache(tmp_path)
    before = []

    def kill(finished: int) -> None:
        if finished == 3:
            before.extend(p.name for p in tmp_path.iterdir())
            nodes.kill_second()

    engine = Counting(RayEngine(), after=kill)
    made, failures = digests(engine, jobs, cache=cache)
    assert failures == [] and made == digests(LocalEngine(), sleepers(echo, 8, 0), workers=1)[0]
    assert len(before) == 3 and set(before) <= {p.name for p in tmp_path.iterdir()}
    again = Counting(RayEngine())
    assert digests(again, jobs, cache=cache)[0] == made and again.started == []


def test_a_stopped_run_goes_on_and_does_nothing_twice(work, expected, nodes, tmp_path) -> None:
    def stop(finished: int) -> None:
        if finished == 4:
            raise KeyboardInterrupt

    cache = redhost_ray.jobs.JobCache(tmp_path)
    first = Counting(RayEngine(), after=stop)
    with pytest.raises(KeyboardInterrupt):
        digests(first, work, cache=cache)
    there = len(list(tmp_path.iterdir()))
    second = Counting(RayEngine())
    assert digests(second, work, cache=cache) == expected
    assert there >= 3 and len(second.started) == len(work.listed) - there


def test_a_task_whose_worker_is_killed_is_done_again(echo, nodes) -> None:
    jobs = sleepers(echo, 2, 3)

    def kill(finished: int) -> None:
        if finished == 1:
            time.sleep(1)  # the next one sleeps by now
            os.kill(_busy_worker(), signal.SIGKILL)

    made, failures = digests(Counting(RayEngine(), after=kill), jobs, workers=1)
    assert failures == [] and len(made) == 2


def _busy_worker() -> int:
    """Return the process of the one worker that does a task: its title names the function."""
    titles = {p: (p / "cmdline").read_bytes() for p in Path("/proc").glob("[0-9]*")}
    [found] = [p for p, title in titles.items() if title.startswith(b"ray::do")]
    return int(found.name)


def test_a_cluster_that_is_not_there_is_one_line(echo, monkeypatch) -> None:
    monkeypatch.setenv("REDHOST_RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(redhost.MissingError, match=r"expected Ray at 127\.0\.0\.1:1"):
        digests(RayEngine(), sleepers(echo, 1, 0))


def test_the_command_runs_on_ray_as_on_this_machine(tmp_path) -> None:
    """Typed in a shell: --engine ray; `redhost trust` is not needed for a plugin of this tree."""
    environment = {
        "REDHOST_HOME": str(tmp_path / "home"),
        "REDHOST_CONFIG": str(tmp_path / "config"),
    }

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "redhost", *arguments],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, **environment},
        )

    here, there = run("check", "--json"), run("check", "--json", "--engine", "ray")
    assert there.returncode == 0, there.stderr
    assert there.stdout == here.stdout and there.stdout.count('"ok": true') == 5
