"""What `redhost gateway` prints when it answers, and how it ends."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from warm_start import warm_command


def started(home: Path, upstream: str, *options: str) -> subprocess.Popen[str]:
    listens = ("--home", str(home), "--port", "0", "--upstream", upstream)
    return subprocess.Popen(
        warm_command("-m", "redhost", "gateway", *listens, *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


@contextmanager
def gateway(home: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway before an upstream that does not answer, and its first line."""
    process = started(home, "http://127.0.0.1:9", *options)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline()
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)


def test_where_nothing_is_composed_it_says_what_to_run(tmp_path: Path) -> None:
    home = tmp_path / "empty"
    with gateway(home) as (_, line):
        pass
    assert line.startswith("generation none chooses on http://127.0.0.1:")
    assert f"nothing is composed in {home}. Run 'redhost recompose --home {home}'" in line


def get(line: str, path: str) -> tuple[int, dict[str, object]]:
    place = line.partition("http://")[2].partition(":")[2].partition(":")[0].strip()
    with closing(http.client.HTTPConnection("127.0.0.1", int(place), timeout=30)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())


def test_after_sigterm_it_is_not_ready_and_still_answers(tmp_path: Path) -> None:
    with gateway(tmp_path / "empty", "--limit", "grace=600") as (process, line):
        assert get(line, "/health/ready")[1]["draining"] is False
        process.send_signal(signal.SIGTERM)
        while not (ready := get(line, "/health/ready"))[1]["draining"]:
            pass
        assert ready[0] == 503
        assert get(line, "/health/live") == (200, {"live": True})
        assert process.poll() is None


def test_when_the_grace_is_over_it_is_gone_with_exit_code_0(tmp_path: Path) -> None:
    with gateway(tmp_path / "empty", "--limit", "grace=0.1") as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_ctrl_c_before_it_answers_is_exit_code_130_and_no_address(
    tmp_path, upstream, until
) -> None:
    address, state = upstream
    state.hangs = True
    process = started(tmp_path / "empty", address)
    try:
        until(lambda: state.open)
        process.send_signal(signal.SIGINT)
        state.hangs = False
        printed, _ = process.communicate(timeout=60)
    finally:
        state.hangs = False
        process.kill()
    assert (process.returncode, printed) == (130, "")
