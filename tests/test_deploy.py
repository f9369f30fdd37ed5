"""The recipes in deploy/: a container and a systemd unit start a server that exists."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from redhost_serve.cli import serve
from redhost_serve.graceful import ENDING
from redhost_serve.run import Limits

DEPLOY = Path(__file__).parents[1] / "deploy"


def container() -> dict[str, list[str]]:
    """Return the arguments of every instruction of the Containerfile, by its name."""
    text = re.sub(r"\\\n", " ", (DEPLOY / "Containerfile").read_text("utf-8"))
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name.isupper():
            found.setdefault(name, []).append(rest.strip())
    return found


def unit() -> configparser.ConfigParser:
    made = configparser.ConfigParser(interpolation=None)
    made.optionxform = str  # type: ignore[assignment, method-assign]
    made.read(DEPLOY / "redhost.service", "utf-8")
    return made


@pytest.mark.parametrize(
    "command",
    [json.loads(container()["CMD"][0]), shlex.split(unit()["Service"]["ExecStart"])],
    ids=["container", "unit"],
)
def test_the_command_is_one_that_the_server_takes(command) -> None:
    program, name, *options = command
    assert Path(program).name == "redhost" and name == "serve"
    given = serve.make_context("serve", options).params
    assert given["port"] == 8080


@pytest.mark.parametrize(
    ("file", "pattern"),
    [
        ("redhost.service", r"^TimeoutStopSec=(\d+)$"),
        ("kubernetes.yaml", r"terminationGracePeriodSeconds: (\d+)"),
        ("kserve.yaml", r"terminationGracePeriodSeconds: (\d+)"),
        ("Containerfile", r"--stop-timeout (\d+)"),
    ],
)
def test_no_recipe_kills_a_server_before_it_has_ended_by_itself(file: str, pattern: str) -> None:
    [seconds] = re.findall(pattern, (DEPLOY / file).read_text("utf-8"), re.MULTILINE)
    assert int(seconds) > Limits().grace + ENDING


def test_the_container_serves_the_port_and_the_home_that_it_declares() -> None:
    found = container()
    assert found["EXPOSE"] == ["8080"]
    assert found["ENV"] == [f"REDHOST_HOME={found['VOLUME'][0]}"]
    assert found["USER"] == ["redhost"] and found["STOPSIGNAL"] == ["SIGTERM"]
    [check] = found["HEALTHCHECK"]
    code = json.loads(check[check.index("[") :])[2]
    compile(code, "check", "exec")
    assert ":8080/v2/health/ready" in code


def test_the_health_check_fails_where_nothing_is_ready() -> None:
    [check] = container()["HEALTHCHECK"]
    code = json.loads(check[check.index("[") :])[2].replace(":8080", ":9")
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_understands_the_unit(tmp_path) -> None:
    file = tmp_path / "redhost.service"
    text = (DEPLOY / "redhost.service").read_text("utf-8")
    file.write_text(text.replace("/opt/redhost/bin/redhost", sys.executable))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(file)], check=False, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
