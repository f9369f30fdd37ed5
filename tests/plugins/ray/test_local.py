"""The local engine: workers are processes that may die, and nothing finished dies with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redhost_ray.jobs
from redhost_ray import local
from redhost_ray.local import ATTEMPTS, LocalEngine
from redhost_ray.worker import write_frame

from . import echo as worker
from .echo import echo

ECHO = Path(worker.__file__)


@pytest.fixture(autouse=True)
def echo_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the engine start workers that know the function of these tests."""
    monkeypatch.setattr(local, "WORKER", (str(ECHO),))


def workers_of(parent: int) -> list[int]:
    """Return the worker processes that a process started."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if int(status[1]) == parent and status[0] != "Z" and str(ECHO).encode() in command:
            found.append(int(folder.name))
    return found


def wait_for(what, *, seconds: float = 60):
    """Return what a function returns once that is true; fail when it never is."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := what():
            return found
        time.sleep(0.02)
    raise AssertionError("it never came to that")


def echoes(**gates: Path | None) -> redhost_ray.jobs.JobBatch:
    """Return a job for each name, which waits for its file to be there."""
    jobs = redhost_ray.jobs.JobBatch()
    for name, gate in gates.items():
        inputs = jobs.put("in", {"text": name.encode()})
        jobs.add(name, echo, {} if gate is None else {"awaits": str(gate)}, inputs)
    return jobs


def kill_workers(gate: Path) -> None:
    """Kill every worker of this process, once one of them waits for a file."""
    wait_for(gate.with_suffix(".begun").exists)
    for pid in workers_of(os.getpid()):
        os.kill(pid, signal.SIGKILL)


def run(jobs: redhost_ray.jobs.JobBatch, *, workers: int) -> Iterator[redhost_ray.jobs.JobResult]:
    return LocalEngine().run(jobs.listed, inputs=jobs.inputs, workers=workers)


def test_results_are_the_same_from_any_number_of_workers() -> None:
    jobs = echoes(a=None, b=None, c=None)
    here, there = (sorted(run(jobs, workers=n), key=lambda r: r.key) for n in (1, 2))
    assert here == there and len(here) == 3 and not any(r.error for r in here)
    assert workers_of(os.getpid()) == []


def test_an_input_is_sent_once_to_workers_that_have_it(monkeypatch) -> None:
    sent: list[int] = []
    write = write_frame

    def count(stream, body) -> None:
        sent.append(len(body))
        write(stream, body)

    monkeypatch.setattr(local, "write_frame", count)
    jobs = redhost_ray.jobs.JobBatch()
    big = jobs.put("in", {"big": bytes(10**6)})
    for n in range(6):
        jobs.add(f"job {n}", echo, {"n": n}, big)
    assert not any(r.error for r in run(jobs, workers=2))
    assert sum(size > 10**6 for size in sent) <= 2 and len(sent) == 6


def test_a_job_whose_worker_is_killed_is_done_by_another(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    results = run(echoes(long=gate, quick=None), workers=2)
    first = next(results)
    assert first.files == {"text": b"quick"}
    kill_workers(gate)
    gate.touch()
    assert [r.files for r in results] == [{"text": b"long"}]


def test_a_job_that_kills_every_worker_is_named_and_the_others_are_done(tmp_path: Path) -> None:
    jobs = echoes(deadly=tmp_path / "never", quick=None, fast=None)
    results = run(jobs, workers=2)
    assert sorted(next(results).files["text"] for _ in range(2)) == [b"fast", b"quick"]
    over = threading.Event()

    def kill() -> None:
        while not over.wait(0.05):
            for pid in workers_of(os.getpid()):
                os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        last = next(results)
    finally:
        over.set()
        killer.join()
    assert last.error == f"deadly: its worker died {ATTEMPTS} times (exit code -9)"
    assert list(results) == []


def test_control_without_retries_blames_the_job_for_one_killed_worker(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(local, "ATTEMPTS", 1)
    results = run(echoes(long=tmp_path / "never", quick=None), workers=2)
    next(results)
    kill_workers(tmp_path / "never")
    assert "its worker died" in next(results).error


def test_a_run_that_is_closed_stops_its_workers_and_leaves_no_files(tmp_path, monkeypatch) -> None:
    never = tmp_path / "never"
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    results = run(echoes(long=never, other=never, quick=None), workers=3)
    next(results)
    assert len(wait_for(lambda: workers_of(os.getpid()))) >= 2
    assert list((tmp_path / "scratch").iterdir())
    results.close()
    assert workers_of(os.getpid()) == [] and list((tmp_path / "scratch").iterdir()) == []


def test_a_worker_that_cannot_start_is_an_error_of_each_job(monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    errors = [r.error for r in run(echoes(a=None, b=None), workers=2)]
    assert len(errors) == 2 and all("FileNotFoundError" in e for e in errors)


DRIVER = f"""
import sys
import redhost_ray.jobs
from redhost_ray import local
sys.path.insert(0, {str(ECHO.parent)!r})
from echo import echo
local.WORKER = ({str(ECHO)!r},)
jobs = redhost_ray.jobs.JobBatch()
for n in range(3):
    jobs.add(f"echo {{n}}", echo, {{"n": n, **({{"awaits": sys.argv[1]}} if n else {{}})}}, {{}})
for result in local.LocalEngine().run(jobs.listed, inputs=jobs.inputs, workers=2):
    print(result.error or "done", flush=True)
"""


def test_workers_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with subprocess.Popen(  # no ``if __name__ == "__main__"`` in it, and none is needed
        [sys.executable, "-c", DRIVER, str(gate)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as driver:
        assert driver.stdout is not None and driver.stdout.readline() == b"done\n"
        pids = wait_for(lambda: len(found := workers_of(driver.pid)) == 2 and found)
        driver.kill()
    gate.touch()  # they notice when their jobs are done
    wait_for(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids))
