"""redhost without Ray: never imported, and one line where it is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import json, sys
if sys.argv[1] == "absent":
    sys.modules["ray"] = None  # as where it is not installed
import redhost, redhost_ray.jobs
from redhost_ray.functions import verify_package
pool = redhost_ray.jobs.choose_pool(redhost.plugins.Plugins(), engine=sys.argv[2], workers=1)
jobs = redhost_ray.jobs.JobBatch()
jobs.add("no expert", verify_package, {}, {})
try:
    answer = [f.reason for f in pool.run(jobs, lambda job, files: None)]
except redhost.MissingError as e:
    answer = [e.exit_code, str(e)]
print(json.dumps([answer, bool(sys.modules.get("ray"))]))
"""


@pytest.fixture
def run(tmp_path: Path):
    """Return the function that runs a job in a process of its own: (answer, ray is there)."""
    env = {**os.environ, "REDHOST_CONFIG": str(tmp_path / "config")}

    def in_process(*arguments: str) -> tuple[list[object], bool]:
        command = [sys.executable, "-c", CODE, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, env=env)
        answer, there = json.loads(done.stdout.splitlines()[-1])
        return answer, there

    return in_process


def test_the_plugin_imports_no_ray_until_it_runs(run) -> None:
    assert run("as it is", "local") == ([], False)


def test_the_engine_without_ray_is_one_line_and_exit_3(run) -> None:
    answer, _ = run("absent", "ray")
    assert answer[0] == 3 and str(answer[1]).startswith("engine 'ray' needs Ray: found")
    assert "pip install 'redhost-ray[ray]'" in str(answer[1])
