"""A job function of the tests' own, and a worker that has it: ``python echo.py``."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from redhost_ray.functions import FUNCTIONS
from redhost_ray.job import Job, JobFiles, job_function
from redhost_ray.worker import main


@job_function("echo", version=1)
def echo(job: Job, files: JobFiles) -> JobFiles:
    """Wait `seconds`, and for a file where one is named, and return the files.

    That it waits for the file shows in another beside it.
    """
    time.sleep(float(job.arguments.get("seconds", 0)))
    if awaited := job.arguments.get("awaits"):
        gate = Path(str(awaited))
        gate.with_suffix(".begun").touch()
        while not gate.exists():
            time.sleep(0.02)
    return {Path(name).name: data for name, data in files.items()}


if __name__ == "__main__":
    FUNCTIONS[echo.name] = echo
    with suppress(BrokenPipeError):
        main()
