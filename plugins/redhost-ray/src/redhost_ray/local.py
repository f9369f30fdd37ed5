"""The default engine: runs jobs in this process, or in worker processes on this machine.

One thread serves one worker process, so the job of a worker that died is known. Workers are new
interpreters that exchange the frames of `redhost_ray.worker`: nothing is forked or pickled, and the
starting program needs no ``if __name__ == "__main__"``.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue

import msgspec

from redhost.registry.environment import python_command
from redhost.registry.errors import one_line
from redhost_ray.job import Job, JobResult
from redhost_ray.worker import WorkerRequest, read_frame, write_frame

ATTEMPTS = 3
"""How often a job's worker may die before the job counts as failed."""

WORKER = ("-m", "redhost_ray.worker")
"""The interpreter arguments that start a worker."""


class LocalEngine:
    """Runs jobs on this machine; a single worker is this process itself."""

    def run(
        self, jobs: Sequence[Job], *, inputs: Mapping[str, bytes], workers: int
    ) -> Iterator[JobResult]:
        """Yield results as jobs finish; closing the generator stops the workers."""
        if workers == 1:
            yield from _run_here(jobs, inputs)
            return
        todo: SimpleQueue[Job] = SimpleQueue()
        done: SimpleQueue[JobResult] = SimpleQueue()
        for job in jobs:
            todo.put(job)
        # Killed workers leave their temporary files in this folder, which is then deleted.
        with tempfile.TemporaryDirectory(prefix="redhost-workers-") as scratch:
            count = min(workers, len(jobs))
            threads = [_WorkerThread(todo, done, inputs, scratch=scratch) for _ in range(count)]
            try:
                for thread in threads:
                    thread.start()
                for _ in jobs:
                    yield done.get()
            finally:
                for thread in threads:
                    thread.stop()
                for thread in threads:
                    thread.join()


def _run_here(jobs: Sequence[Job], inputs: Mapping[str, bytes]) -> Iterator[JobResult]:
    # Imported here, so that the code of jobs is loaded by the first run, not when a host starts.
    from redhost_ray.functions import release_backbone
    from redhost_ray.runner import run_job

    try:
        for job in jobs:
            yield run_job(job, inputs)
    finally:
        release_backbone()


class _WorkerThread(threading.Thread):
    """A thread that sends jobs to one worker process at a time."""

    def __init__(
        self,
        todo: SimpleQueue[Job],
        done: SimpleQueue[JobResult],
        inputs: Mapping[str, bytes],
        *,
        scratch: str,
    ) -> None:
        super().__init__(daemon=True)
        self.todo, self.done, self.inputs, self.scratch = todo, done, inputs, scratch
        self._guard = threading.Lock()
        self._stopped = False
        self._process: subprocess.Popen[bytes] | None = None
        self._sent: set[str] = set()  # inputs of the last job, which the worker keeps

    def run(self) -> None:
        """Run jobs until there are no more, or until stopped."""
        with suppress(Empty):
            while not self._stopped:
                self.done.put(self._result(self.todo.get_nowait()))

    def stop(self) -> None:
        """Kill the worker, even within a job, and start no other."""
        with self._guard:
            self._stopped = True
        self._kill_worker()

    def _result(self, job: Job) -> JobResult:
        """Run a job; an exception becomes its result, because the run waits for one per job."""
        try:
            return self._do(job)
        except Exception as e:
            return JobResult(key=job.key, error=one_line(f"{job.name}: {type(e).__name__}: {e}"))

    def _do(self, job: Job) -> JobResult:
        """Run a job; if its worker dies, retry in a new one, at most `ATTEMPTS` times in all."""
        end = "stopped"
        for _ in range(ATTEMPTS):
            if (process := self._worker()) is None:
                break
            frame = self._exchange(process, job)
            if frame is not None:
                self._sent = set(job.inputs.values())
                return msgspec.msgpack.decode(frame, type=JobResult)
            end = f"its worker died {ATTEMPTS} times (exit code {self._kill_worker()})"
        return JobResult(key=job.key, error=f"{job.name}: {end}")

    def _exchange(self, process: subprocess.Popen[bytes], job: Job) -> bytes | None:
        """Send a job and wait for its result; None if the worker died."""
        missing = set(job.inputs.values()) - self._sent
        inputs = {sha: self.inputs[sha] for sha in sorted(missing)}
        request = WorkerRequest(job=job, inputs=inputs)
        assert process.stdin is not None and process.stdout is not None  # noqa: S101  (pipes)
        try:
            write_frame(process.stdin, msgspec.msgpack.encode(request))
            return read_frame(process.stdout)
        except (OSError, ValueError):  # a broken or closed pipe
            return None

    def _worker(self) -> subprocess.Popen[bytes] | None:
        """Return the worker, and start one if there is none; None once stopped."""
        with self._guard:
            if self._stopped:
                return None
            if self._process is None:
                self._process, self._sent = _start(self.scratch), set()
            return self._process

    def _kill_worker(self) -> int | None:
        """Kill the worker if there is one; return its exit code."""
        with self._guard:
            process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # buffered output has no reader any more
                    pipe.close()
        return code


def _start(scratch: str) -> subprocess.Popen[bytes]:
    """Start a worker with the same import path as this process."""
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(  # noqa: S603  (our own command)
        python_command(*WORKER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": scratch},
        # Ctrl-C must only reach the starting process: a worker would print a traceback.
        start_new_session=True,
    )
