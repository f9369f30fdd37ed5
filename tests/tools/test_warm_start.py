"""A process that is started warm is one like any other: its code, streams, signals and folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm_start
from warm_start import FRESH, warm_command

from redhost.registry.environment import python_command

IS_WARM = "import sys; print('torch' in sys.modules)"
RAISE = "raise ValueError('no')"
CATCH = """
import time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    raise SystemExit(130)
"""


def outcome(command: list[str], **options: object) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    return done.returncode, done.stdout, done.stderr.splitlines()[-1] if done.stderr else ""


@pytest.mark.parametrize(
    "code",
    [
        "print('hello')",
        "raise SystemExit(7)",
        "raise SystemExit('a reason')",
        RAISE,
        "import os, sys; sys.stdout.write('lost'); os.close(1)",
        "import os; os._exit(9)",
        "import os; os.abort()",
        "import atexit; atexit.register(print, 'at last')",
        "import sys; print(sys.stdin.read(), sys.argv, sys.path[0])",
        "import os; print(os.getcwd(), os.environ['COLOUR'], os.umask(0))",
    ],
)
def test_it_ends_and_prints_as_a_fresh_one(code: str, tmp_path: Path) -> None:
    options = {"cwd": tmp_path, "env": {**os.environ, "COLOUR": "red"}, "input": "typed"}
    warm, fresh = warm_command("-c", code, "one"), [sys.executable, "-c", code, "one"]
    assert outcome(warm, **options) == outcome(fresh, **options)


def test_a_file_runs_as_in_a_fresh_one(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    file = tmp_path / "main.py"
    file.write_text("import beside, sys\nprint(__name__, __file__, sys.argv, sys.path[0])\n")
    warm, fresh = warm_command(str(file), "one"), [sys.executable, str(file), "one"]
    assert outcome(warm) == outcome(fresh) and outcome(warm)[0] == 0


@pytest.mark.parametrize("streams", [">&-", ">/dev/full", "2>&-", "<&- >&- 2>&-"])
def test_its_streams_are_closed_where_its_own_are(streams: str) -> None:
    code = "import os, sys; print([s is None for s in (sys.stdin, sys.stdout, sys.stderr)])"
    shell = ["bash", "-c", f'"$@" {streams}', "bash"]
    warm, fresh = warm_command("-c", code), [sys.executable, "-c", code]
    assert outcome([*shell, *warm]) == outcome([*shell, *fresh])


def test_ctrl_c_reaches_it() -> None:
    with subprocess.Popen(warm_command("-c", CATCH), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130


def test_it_dies_with_what_started_it() -> None:
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60); print('alive')"
    with subprocess.Popen(warm_command("-c", code), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.kill()
        assert process.stdout.read() == ""  # its end of the pipe is closed: it is gone
        assert process.wait() == -signal.SIGKILL


def test_what_libraries_read_as_they_are_imported_needs_a_fresh_one() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "3"}
    assert outcome(warm_command("-c", IS_WARM))[1] == "True\n"
    assert outcome(warm_command("-c", IS_WARM), env=environment)[1] == "False\n"


STARTS = f"""
import subprocess
from redhost.registry.environment import python_command
done = subprocess.run(python_command("-c", {IS_WARM!r}), capture_output=True, close_fds=False)
print(done.args[1], done.stdout.decode(), end="")
"""


def test_what_redhost_starts_is_warm_unless_a_test_wants_it_fresh(monkeypatch, tmp_path) -> None:
    file = tmp_path / "main.py"
    file.write_text(IS_WARM)
    for command, shown in (
        (python_command("-c", IS_WARM), ""),
        (warm_command("-c", STARTS), "-P "),
        (python_command(str(file)), ""),
    ):
        assert outcome(command)[1] == f"{shown}True\n"
        with monkeypatch.context() as patch:
            patch.setenv(FRESH, "yes")
            assert outcome(command)[1] == f"{shown}False\n"


ASK = """
from concurrent.futures import ThreadPoolExecutor
from warm_start import warm_command
with ThreadPoolExecutor(3) as pool:
    print(len({tuple(c) for c in pool.map(warm_command, ["-c"] * 3)}))
"""


def test_threads_that_need_a_server_at_once_share_it() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(warm_start.__file__).parent)}
    assert outcome([sys.executable, "-c", ASK], env=environment) == (0, "1\n", "")
