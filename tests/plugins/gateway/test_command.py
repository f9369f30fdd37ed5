"""What `redhost gateway` prints when it answers."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from warm_start import warm_command


def test_where_nothing_is_composed_it_says_what_to_run(tmp_path: Path) -> None:
    home = tmp_path / "empty"
    options = ("--home", str(home), "--port", "0", "--upstream", "http://127.0.0.1:9")
    process = subprocess.Popen(
        warm_command("-m", "redhost", "gateway", *options),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert line.startswith("generation none chooses on http://127.0.0.1:")
    assert f"nothing is composed in {home}. Run 'redhost recompose --home {home}'" in line
