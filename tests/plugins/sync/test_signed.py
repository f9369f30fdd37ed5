"""A signed expert, exported and rebuilt with its key: its author's wheel, and its signature."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from redhost_author.signing import make_signer, new_key
from redhost_sync.export import closure

EXTRA = "red_expert_extra-0.1.0-py3-none-any.whl"


@pytest.fixture(scope="module")
def signed(make_venv: Any, draft: Any, tmp_path_factory: Any) -> Any:
    """A composition whose lock names the key that signed its expert."""
    folder = tmp_path_factory.mktemp("signed")
    venv, wheels, home = make_venv(folder / "venv"), folder / "wheels", folder / "home"
    wheels.mkdir()
    public = new_key(folder / "author.pem")
    make_signer(folder / "author.pem")(draft("extra").write(wheels))
    target = ("red-expert-extra", "--find-links", str(wheels), "--key", str(public))
    done = venv.run("add", *target, home=home)
    assert done.returncode == 0, done.stderr
    return venv, wheels, home, public


def test_what_was_signed_is_rebuilt_with_its_key(signed: Any, tmp_path: Path) -> None:
    venv, wheels, home, public = signed
    out, clone = tmp_path / "out", tmp_path / "clone"
    done = venv.run("export-wheels", str(out), "--only-named", "--json", home=home)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unsigned"] == {} and "not signed" not in done.stderr
    for name in (EXTRA, f"{EXTRA}.sig"):
        assert (out / name).read_bytes() == (wheels / name).read_bytes()
    clone.mkdir()
    shutil.copy(home / "redhost.lock", clone)
    venv.pip("uninstall", "--yes", "--quiet", "red-expert-extra")
    done = venv.run("sync", "--from", str(out), "--key", str(public), home=clone)
    assert done.returncode == 0, done.stderr
    assert "installed    red-expert-extra 0.1.0" in done.stdout


def test_one_line_says_what_to_do_where_the_signed_wheel_is_gone(
    signed: Any, tmp_path: Path
) -> None:
    venv, wheels, home, _ = signed
    moved = wheels.rename(wheels.with_name("moved"))
    try:
        out = str(tmp_path / "out")
        done = venv.run("export-wheels", out, "--only-named", home=home)
        assert done.returncode == 0, done.stderr
        [line] = [line for line in done.stderr.splitlines() if line.startswith("not signed: ")]
        assert f"red-expert-extra: there is no folder {wheels}" in line and "--signed" in line
        assert not (tmp_path / "out" / f"{EXTRA}.sig").exists()
        options = ("--only-named", "--signed", str(moved))
        done = venv.run("export-wheels", out, *options, home=home)
        assert done.returncode == 0 and "not signed" not in done.stderr
        assert (tmp_path / "out" / EXTRA).read_bytes() == (moved / EXTRA).read_bytes()
        (moved / f"{EXTRA}.sig").rename(moved / "elsewhere")
        done = venv.run("export-wheels", out, *options, home=home)
        (moved / "elsewhere").rename(moved / f"{EXTRA}.sig")
        assert f"lacks {EXTRA}.sig" in done.stderr
        assert not (tmp_path / "out" / f"{EXTRA}.sig").exists()
    finally:
        moved.rename(wheels)


def test_packages_that_check_signatures_come_along() -> None:
    assert {"cryptography", "model-signing"} <= closure([], dependencies=True, extra="sign")
    assert "cryptography" not in closure(["redhost"], dependencies=True)
