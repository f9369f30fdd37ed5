"""Commands whose standard streams are closed, full or no longer read."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from warm_start import warm_command

from redhost.registry.environment import python_command

QUESTION = "What is 1 plus 2?"
PRINTING = (
    ["--help"],
    ["list-experts"],
    ["list-experts", "--json"],
    ["status"],
    ["history"],
    ["predict", QUESTION],
    ["predict", "--json", QUESTION],
    ["check", "red-expert-range1"],
    ["recompose", "--dry-run"],
)
PUBLISHING = (["recompose"], ["recompose", "--json"], ["rollback", "1"])
LOST = {">&-": "it is closed", ">/dev/full": "No space left on device"}
NO_ERRORS = ("2>&-", "2>/dev/full", "2> >(exec true)")


def shell(
    streams: str, *arguments: str, status: str = "${PIPESTATUS[0]}"
) -> subprocess.CompletedProcess[str]:
    """Run the command in a shell that redirects its streams; return its exit code and output."""
    script = f'"$@" {streams}; exit {status}'
    command = ["bash", "-c", script, "bash", *warm_command("-P", "-m", "redhost", *arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300
    )


@pytest.mark.parametrize("streams", LOST)
@pytest.mark.parametrize("arguments", PRINTING, ids=" ".join)
def test_lost_output_is_one_line_and_exit_code_1(home, arguments, streams) -> None:
    done = shell(streams, *arguments)
    lines = done.stderr.splitlines()
    assert lines[-1] == f"redhost: cannot write standard output: {LOST[streams]}"
    assert [x for x in lines if "redhost:" in x or "Error" in x or "Exception" in x] == lines[-1:]
    assert done.returncode == 1


@pytest.mark.parametrize("streams", LOST)
@pytest.mark.parametrize("arguments", PUBLISHING, ids=" ".join)
def test_a_generation_is_published_though_its_receipt_is_lost(home, arguments, streams) -> None:
    (Path(home) / "current").unlink()  # so that recompose has something to publish
    shell("", "rollback", "1")
    done = shell(streams, *arguments)
    *_, line = done.stderr.splitlines()
    assert line.startswith(f"redhost: cannot write standard output: {LOST[streams]}; its gen")
    assert "published" in line and "Traceback" not in done.stderr
    assert done.returncode == 1
    assert json.loads(shell("", "status", "--json").stdout)["generation"]


@pytest.mark.parametrize("streams", NO_ERRORS)
@pytest.mark.parametrize(
    "arguments",
    [["-v", "status"], ["status", "--nonsense"], ["predict", QUESTION], ["rollback", "1"]],
    ids=" ".join,
)
def test_without_standard_error_code_and_output_are_the_same(home, arguments, streams) -> None:
    whole, done = (shell(s, *arguments) for s in ("", streams))
    assert done.returncode == whole.returncode
    assert done.stderr == ""
    assert done.stdout == whole.stdout


@pytest.mark.parametrize(
    "arguments", [["list-experts"], ["predict", QUESTION], ["recompose"]], ids=" ".join
)
def test_a_reader_that_leaves_is_no_failure(home, arguments) -> None:
    done = shell("| true", *arguments)
    assert done.returncode == 0
    assert not [x for x in done.stderr.splitlines() if "redhost" in x or "Error" in x]


def test_closed_standard_input_is_empty(home) -> None:
    closed, empty = (shell(s, "predict", "-") for s in ("<&-", "</dev/null"))
    assert (closed.returncode, closed.stdout) == (empty.returncode, empty.stdout)
    assert "Traceback" not in closed.stderr
    assert shell("<&-", "status").returncode == 0


def test_without_any_stream_a_command_does_its_work(home, tmp_path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"text": QUESTION}) + "\n")
    out = tmp_path / "out.jsonl"
    done = shell("<&- >&- 2>&-", "predict", "--in", str(rows), "--out", str(out))
    assert done.returncode == 1
    assert json.loads(out.read_text())["answer"]


def test_no_file_gets_the_number_of_a_closed_stream() -> None:
    """A library that warns on descriptor 2 would write into it."""
    code = (
        "import os, sys\nfrom redhost.cli import main\n"
        "try: main(['--version'])\nexcept SystemExit: pass\n"
        f"sys.exit(0 if os.open({os.devnull!r}, 0) > 2 else 7)"
    )
    command = ["bash", "-c", '"$@" <&- >&- 2>&-', "bash", *python_command("-c", code)]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
