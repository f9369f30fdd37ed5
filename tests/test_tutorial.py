"""The tutorial's commands, run as they stand, in a folder and an environment of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def commands(page: Path) -> list[str]:
    """Return what stands behind ``$`` in the console blocks, with its continuation lines."""
    blocks = re.findall(r"```console\n(.*?)```", page.read_text("utf-8"), flags=re.DOTALL)
    return [
        c for block in blocks for c in re.split(r"^\$ ", block, flags=re.MULTILINE) if c.strip()
    ]


def test_every_command_of_the_tutorial_runs(tmp_path: Path) -> None:
    site, tools = tmp_path / "site", tmp_path / "tools"
    tools.mkdir()
    python = sys.executable
    for name, line in {
        "redhost": f'exec "{python}" -m redhost "$@"',
        "python": f'exec "{python}" "$@"',
        "pip": f'shift; exec "{python}" -m pip install -q --target "{site}" "$@"',
    }.items():
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(site),
        "REDHOST_HOME": str(tmp_path / "home"),
    }
    output = {}
    found = commands(ROOT / "docs" / "tutorial.md")
    assert len(found) == 19
    for command in found:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=tmp_path,
            env=env,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        output[command.split("\n")[0][:24]] = done.stdout
    answers = output['redhost predict "good mo']
    assert "→ greeting" in answers and "→ 49" in answers
