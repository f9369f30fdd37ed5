"""A home with flipped bits in its caches, and one that cannot be written: answers stay the same."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_start import warm_command

import redhost
from redhost.registry.queries.inventory import take_status

TEXTS = ["red 61 b", "green 62 c", "blue 63 f"]


def recompose(home: Path) -> redhost.Receipt:
    with redhost.Host.open(home, backbone="toy") as host:
        return host.recompose(accept=True)


def accused(receipt: redhost.Receipt) -> set[str]:
    """What was left out, the packages of the real environment excepted."""
    return {x.id for x in receipt.left_out if x.code != "backbone_mismatch"}


def test_thirty_flipped_bits_in_the_caches_change_no_router_and_accuse_nobody(
    installed: Any, home: Path
) -> None:
    first = recompose(home)
    cache, random_bits = home / "cache", random.Random(21)
    whole = {p: p.read_bytes() for p in sorted(cache.rglob("*")) if p.is_file()}
    assert {p.suffix for p in whole} >= {".sqlite"}
    size = sum(map(len, whole.values()))
    noticed = 0
    for _ in range(30):
        shutil.rmtree(cache)
        place = random_bits.randrange(size)
        for path, data in whole.items():
            flipped = bytearray(data)
            if 0 <= place < len(data):
                flipped[place] ^= 1 << random_bits.randrange(8)
            place -= len(data)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(flipped)
        receipt = recompose(home)
        assert receipt.router.digest == first.router.digest
        assert (accused(receipt), receipt.withdrawn) == (set(), ())
        assert receipt.accuracy.after == first.accuracy.after
        noticed += bool(take_status(home).damaged)
    assert noticed > 10


READ = """
import json, sys
import redhost
with redhost.Host.open(sys.argv[1], backbone="toy") as host:
    found = host.evaluate()
    answers = host.predict(sys.argv[2:])
print(json.dumps([found.overall, found.domains, [[a.label, a.probability] for a in answers]]))
"""

COMMANDS = """
import contextlib, io
from redhost.cli import main

for command in ["status", "--json"], ["recompose"]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([*command, "--home", sys.argv[1]]) or 0
        except SystemExit as e:
            code = e.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""

BIND = """
mount --bind '{home}' '{home}' && mount -o remount,ro,bind '{home}' && exec "$@"
"""


def no_mounts(folder: Path) -> str:
    """Return why a folder cannot be mounted read-only here; empty where it can."""
    script = BIND.format(home=folder)
    try:
        run = ["unshare", "-rm", "sh", "-c", script, "sh", "true"]
        done = subprocess.run(run, check=False, capture_output=True, text=True)
    except OSError as e:
        return f"no unshare: {e}"
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture
def run_python(installed: Any, home: Path, tmp_path: Path) -> Callable[..., Any]:
    """Return what a process of its own says of the home, which it may be unable to write."""

    def ask(*command: str, read_only: bool = False) -> subprocess.CompletedProcess[str]:
        run = warm_command(*command)
        if read_only:  # in a namespace of its own, to which no warm start can belong
            script = BIND.format(home=home)
            run = ["unshare", "-rm", "sh", "-c", script, "sh", sys.executable, *command]
        path = os.pathsep.join([str(installed.folder), os.environ.get("PYTHONPATH", "")])
        env = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        return subprocess.run(
            run, check=False, capture_output=True, text=True, cwd=tmp_path, env=env
        )

    return ask


def files(home: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in home.rglob("*") if p.is_file()}


@pytest.mark.parametrize("cached", [True, False])
def test_a_home_that_cannot_be_written_answers_the_same(
    run_python: Callable[..., Any], home: Path, tmp_path: Path, cached: bool
) -> None:
    recompose(home)
    if reason := no_mounts(home):
        pytest.skip(f"cannot mount a folder read-only: {reason}")
    right = run_python("-c", READ, str(home), *TEXTS)
    assert right.returncode == 0, right.stderr
    if not cached:
        shutil.rmtree(home / "cache")
    before = files(home)
    found = run_python("-c", READ + COMMANDS, str(home), *TEXTS, read_only=True)
    assert found.returncode == 0, found.stderr
    answers, shown, refused = map(json.loads, found.stdout.splitlines())
    assert answers == json.loads(right.stdout)
    code, out, _ = shown
    assert code == 0 and json.loads(out)["generation"] == 1
    code, out, err = refused
    assert (code, out) == (3, "")
    assert err.count("Traceback") == 0
    assert files(home) == before
