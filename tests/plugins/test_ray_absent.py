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
import redhost, redhost_ray
crew = redhost.choose_crew(redhost.Plugins(), engine=sys.argv[2], workers=1)
jobs = redhost.Jobs()
jobs.add("echo", "echo", {}, {})
try:
    said = [f.reason for f in crew.run(jobs, lambda job, files: None)]
except redhost.MissingError as e:
    said = [e.exit_code, str(e)]
print(json.dumps([said, bool(sys.modules.get("ray"))]))
"""


@pytest.fixture
def run(tmp_path: Path):
    """Return the function that runs a job in a process of its own: what it said, and ray there."""
    env = {**os.environ, "REDHOST_CONFIG": str(tmp_path / "config")}
    trust = [sys.executable, "-m", "redhost", "trust", "redhost-ray"]
    subprocess.run(trust, check=True, capture_output=True, env=env)

    def told(*arguments: str) -> tuple[list[object], bool]:
        command = [sys.executable, "-c", CODE, *arguments]
        done = subprocess.run(command, check=True, capture_output=True, env=env)
        said, there = json.loads(done.stdout.splitlines()[-1])
        return said, there

    return told


def test_a_trusted_plugin_imports_no_ray_until_it_runs(run) -> None:
    assert run("as it is", "local") == ([], False)


def test_the_engine_without_ray_is_one_line_and_exit_3(run) -> None:
    said, _ = run("absent", "ray")
    assert said[0] == 3 and str(said[1]).startswith("engine 'ray' needs Ray: found")
    assert "pip install 'ray>=2.60,<3'" in str(said[1])
