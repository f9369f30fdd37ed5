"""The default engine: jobs in this process, or in worker processes of this machine.

One thread feeds one worker process, so it is known which job a dead worker was doing. Workers are
fresh interpreters that exchange the frames of `core.jobs.worker`: nothing is forked, nothing is
pickled, and the program that started them needs no ``if __name__ == "__main__"``.
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

from ...registry.environment import python_command
from ...registry.errors import one_line
from .job import Job, JobResult
from .worker import WorkerRequest, read_frame, write_frame

ATTEMPTS = 3
"""How often a job's worker may die before the job counts as failed."""

WORKER = ("-m", "redhost.core.jobs.worker")
"""What the interpreter of a worker runs."""


class LocalEngine:
    """Runs jobs on this machine; one worker is this very process."""

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
        # Workers that are killed leave their temporary files in here.
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
    # What jobs compute with is loaded by the first run, not by every start of a host.
    from .functions import release_backbone
    from .runner import run_job

    try:
        for job in jobs:
            yield run_job(job, inputs)
    finally:
        release_backbone()


class _WorkerThread(threading.Thread):
    """One worker process at a time, and the thread that feeds it."""

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
        self._sent: set[str] = set()  # inputs of its last job, which the worker still has

    def run(self) -> None:
        """Do jobs until there are no more, or until stopped."""
        with suppress(Empty):
            while not self._stopped:
                self.done.put(self._result(self.todo.get_nowait()))

    def stop(self) -> None:
        """Kill the worker, whatever it does, and start no other."""
        with self._guard:
            self._stopped = True
        self._kill_worker()

    def _result(self, job: Job) -> JobResult:
        """Do a job; an exception is its result, because the run waits for one each."""
        try:
            return self._do(job)
        except Exception as e:
            return JobResult(key=job.key, error=one_line(f"{job.name}: {type(e).__name__}: {e}"))

    def _do(self, job: Job) -> JobResult:
        """Do a job, in a new worker where one died of it, at most `ATTEMPTS` times."""
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
        """Send a job and wait for its result; None where the worker died."""
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
        """Return the worker, started if there is none; None once stopped."""
        with self._guard:
            if self._stopped:
                return None
            if self._process is None:
                self._process, self._sent = _start(self.scratch), set()
            return self._process

    def _kill_worker(self) -> int | None:
        """Make sure that the worker is dead; return its exit code."""
        with self._guard:
            process, self._process = self._process, None
        if process is None:
            return None
        process.kill()
        code = process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):  # what was still to be written has no reader any more
                    pipe.close()
        return code


def _start(scratch: str) -> subprocess.Popen[bytes]:
    """Start a worker that finds the same packages as this process."""
    path = os.pathsep.join(p for p in sys.path if p)
    return subprocess.Popen(  # noqa: S603  (our own command)
        python_command(*WORKER),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": scratch},
        # Ctrl-C is for the starting process: a worker that got it too would print a traceback.
        start_new_session=True,
    )
