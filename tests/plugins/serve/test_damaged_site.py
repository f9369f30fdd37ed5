"""A damaged package of the environment keeps no server from starting."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from warm_start import warm_command


def test_entry_points_that_are_no_text_stop_no_server(tmp_path: Path) -> None:
    info = tmp_path / "site" / "red_expert_x-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: red-expert-x\nVersion: 1\n\n")
    (info / "entry_points.txt").write_bytes(b"[redhost.experts]\nx = \xff\n")
    done = subprocess.run(
        warm_command("-m", "redhost", "serve", "--home", str(tmp_path / "home")),
        env={**os.environ, "PYTHONPATH": str(info.parent)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    # Its modules are imported by then; it ends for want of a generation, in one line.
    assert done.returncode == 3 and "Traceback" not in done.stderr
    assert "nothing" in done.stderr and done.stderr.count("\n") <= 2
