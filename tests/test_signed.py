"""Signed wheels, as commands see them: without the right signature the environment stays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from redhost_author.signing import make_signer, new_key
from warm_start import warm_command

from redhost.registry.home.composition import LOCK
from redhost.registry.wheel.signing import read_keys, signature_path


@pytest.fixture(scope="module")
def shared(make_venv: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_venv(tmp_path_factory.mktemp("signed") / "venv")


@pytest.fixture
def venv(shared: Any) -> Any:
    """An environment that is empty again afterwards."""
    yield shared
    (shared.folder / "pyproject.toml").unlink(missing_ok=True)
    for info in shared.site.glob("*.dist-info"):
        shared.pip("uninstall", "--yes", "--quiet", info.name.partition("-")[0])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name in ("author", "other"):
        new_key(folder / f"{name}.pem")
    return folder


@pytest.fixture
def index(keys: Path, draft: Any, tmp_path: Path) -> Path:
    """A folder with one wheel that the author signed."""
    folder = tmp_path / "index"
    folder.mkdir()
    make_signer(keys / "author.pem")(draft("extra").write(folder))
    return folder


def only_wheel(index: Path) -> Path:
    [wheel] = index.glob("*.whl")
    return wheel


def unsigned(index: Path, _: Any) -> str:
    signature_path(only_wheel(index)).unlink()
    return "signature_missing"


def replaced(index: Path, draft: Any) -> str:
    """Another sound wheel, with a RECORD that agrees with it, beside the old signature."""
    draft("extra", domain="whatever the attacker likes").write(index)
    return "signature_wrong"


def of_the_older(index: Path, draft: Any) -> str:
    """The next version, beside the signature of this one."""
    signature = signature_path(only_wheel(index)).read_bytes()
    only_wheel(index).unlink()
    signature_path(draft("extra", version="0.2.0").write(index)).write_bytes(signature)
    return "signature_wrong"


By = Callable[[Path, Path, Any], tuple[str, ...]]


def by_flag(index: Path, keys: Path, venv: Any) -> tuple[str, ...]:
    return (str(only_wheel(index)), "--key", str(keys / "author.pub.pem"))


def by_project(index: Path, keys: Path, venv: Any) -> tuple[str, ...]:
    shutil.copy(keys / "author.pub.pem", venv.folder)
    (venv.folder / "pyproject.toml").write_text('[tool.redhost]\nkeys = ["author.pub.pem"]\n')
    return (str(only_wheel(index)),)


def by_name(index: Path, keys: Path, venv: Any) -> tuple[str, ...]:
    return ("red-expert-extra", "--find-links", str(index), "--key", str(keys / "author.pub.pem"))


@pytest.mark.parametrize("attack", [unsigned, replaced, of_the_older])
@pytest.mark.parametrize("by", [by_flag, by_project, by_name])
def test_without_the_right_signature_nothing_is_installed(
    venv: Any, home: Path, keys: Path, index: Path, draft: Any, by: By, attack: Any
) -> None:
    code, arguments = attack(index, draft), by(index, keys, venv)
    before = venv.contents()
    done = venv.run("add", *arguments, home=home)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and f"({code})" in done.stderr
    assert venv.contents() == before and not home.exists()


def test_a_signature_names_its_key_and_is_held_to_it(
    venv: Any, home: Path, keys: Path, index: Path
) -> None:
    """Signed by another, it calls itself the author's: key confusion."""
    wheel, before = only_wheel(index), venv.contents()
    [author] = read_keys([keys / "author.pub.pem"])
    make_signer(keys / "other.pem")(wheel)
    signature = json.loads(signature_path(wheel).read_text())
    signature["verificationMaterial"]["publicKey"]["hint"] = author.fingerprint
    signature_path(wheel).write_text(json.dumps(signature))
    done = venv.run("add", *by_flag(index, keys, venv), home=home)
    assert done.returncode == 1 and "(signature_wrong)" in done.stderr
    assert venv.contents() == before


@pytest.mark.parametrize("by", [by_flag, by_project])
def test_the_first_composition_has_nothing_that_pip_installed_unsigned(
    venv: Any, home: Path, keys: Path, index: Path, draft: Any, tmp_path: Path, by: By
) -> None:
    (tmp_path / "stray").mkdir()
    venv.install(draft("stray").write(tmp_path / "stray"), only_wheel(index))
    done = venv.run("add", *by(index, keys, venv), "--json", home=home)
    assert done.returncode == 0, done.stderr
    receipt = json.loads(done.stdout)["receipt"]
    left = {x["id"]: x["code"] for x in receipt["left_out"]}
    assert {*receipt["experts"]} == {"extra"}
    assert left["stray"] == "signature_missing" and {*left.values()} == {"signature_missing"}
    done = venv.run("recompose", "--json", home=home)  # says the same of the same packages
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)
    assert {*again["experts"]} == {"extra"} and again["generation"] == 1
    assert {x["id"]: x["code"] for x in again["left_out"]} == left
    newer = draft("extra", version="0.2.0", domain="others").write(tmp_path / "stray")
    venv.install(newer)
    done = venv.run("recompose", home=home)
    assert done.returncode == 1 and "now fails (signature_missing)" in done.stderr, done.stdout
    assert venv.run("add", str(newer), home=home).returncode == 0 or by is by_project
    taken = {
        *json.loads(venv.run("recompose", "--json", home=home).stdout or "{}").get("experts", ())
    }
    assert ("stray" in taken) == (by is by_flag)  # an unsigned wheel that was named ends that


def test_a_signed_expert_that_was_left_out_for_a_while_is_signed_when_it_returns(
    venv: Any, home: Path, keys: Path, index: Path, draft: Any, tmp_path: Path
) -> None:
    (tmp_path / "second").mkdir()
    second = draft("stray").write(tmp_path / "second")
    make_signer(keys / "author.pem")(second)
    for wheel in (only_wheel(index), second):
        key = ("--key", str(keys / "author.pub.pem"), "--accept")
        done = venv.run("add", str(wheel), *key, home=home)
        assert done.returncode == 0, done.stderr
    assert locked(home).keys() == {"extra", "stray"}
    for verb in ("disable", "enable"):
        assert venv.run(verb, "stray", home=home).returncode == 0
        done = venv.run("recompose", "--accept", home=home)
        assert done.returncode == 0, done.stderr
        assert ("stray" in locked(home)) == (verb == "enable"), done.stdout


def test_control_without_a_key_what_pip_installed_is_composed_too(
    venv: Any, home: Path, keys: Path, index: Path, draft: Any, tmp_path: Path
) -> None:
    (tmp_path / "stray").mkdir()
    venv.install(draft("stray").write(tmp_path / "stray"))
    done = venv.run("add", str(only_wheel(index)), "--json", home=home)
    assert done.returncode == 0, done.stderr
    assert {"stray", "extra"} <= {*json.loads(done.stdout)["receipt"]["experts"]}


def test_an_old_signed_version_is_not_replayed_over_a_newer_one(
    venv: Any, home: Path, keys: Path, index: Path, draft: Any
) -> None:
    key = ("--key", str(keys / "author.pub.pem"))
    old = str(only_wheel(index))
    new = draft("extra", version="0.10.0").write(index)
    make_signer(keys / "author.pem")(new)
    assert venv.run("add", str(new), *key, home=home).returncode == 0
    done = venv.run("add", old, *key, home=home)
    assert done.returncode == 1 and "expected 0.10.0 or newer, found 0.1.0" in done.stderr
    assert done.stderr.count("\n") == 1
    done = venv.run("add", old, *key, "--accept", home=home)
    assert done.returncode == 0 and "in place of 0.10.0" in done.stdout


def test_the_signature_of_another_package_of_the_author_is_refused(
    venv: Any, home: Path, keys: Path, index: Path, draft: Any, tmp_path: Path
) -> None:
    (tmp_path / "beside").mkdir()
    other = make_signer(keys / "author.pem")(draft("beside").write(tmp_path / "beside"))
    shutil.copy(other, signature_path(only_wheel(index)))
    done = venv.run("add", *by_flag(index, keys, venv), home=home)
    assert done.returncode == 1 and "(signature_wrong)" in done.stderr


def test_a_key_inside_the_wheel_is_no_key(
    venv: Any, home: Path, keys: Path, index: Path, draft: Any
) -> None:
    """The wheel brings the key that signed it; only the user's keys count."""
    drafted = draft("extra")
    drafted.members[f"{drafted.module}/author.pub.pem"] = (keys / "other.pub.pem").read_bytes()
    make_signer(keys / "other.pem")(drafted.write(index))
    done = venv.run("add", *by_flag(index, keys, venv), home=home)
    assert done.returncode == 1 and "(signature_wrong)" in done.stderr


CARELESS = """
import sys
from redhost.registry.package.checked import Checked
from redhost.registry.wheel import wheel
wheel.verify = lambda data, signature, *, keys, name: Checked(keys[0])
from redhost.cli import main
main(sys.argv[1:])
"""


def test_control_without_the_check_installs_it(
    venv: Any, home: Path, keys: Path, index: Path, draft: Any
) -> None:
    replaced(index, draft)
    subprocess.run(
        warm_command("-c", CARELESS, "add", *by_flag(index, keys, venv), python=venv.python),
        check=True,
        capture_output=True,
        env={**os.environ, "REDHOST_HOME": str(home)},
    )
    assert (venv.site / "red_expert_extra").is_dir()  # what we guard against


def test_the_lock_remembers_who_signed_as_long_as_the_bytes_stay(
    venv: Any, home: Path, keys: Path, index: Path, draft: Any
) -> None:
    [key] = read_keys([keys / "author.pub.pem"])
    wheel = str(only_wheel(index))
    session = venv.session(
        ("check", wheel, "--key", str(keys / "author.pub.pem"), "--json"),
        ("add", *by_name(index, keys, venv), "--json"),
        ("recompose", "--json"),
        home=home,
    )
    assert [code for code, _, _ in session] == [0, 0, 0], session
    assert json.loads(session[1][1])["signer"] == key.fingerprint
    assert locked(home)["extra"]["signer"] == key.fingerprint
    assert locked(home).keys() == {"extra"}

    newer = draft("extra", version="0.2.0").write(index)
    assert venv.run("add", str(newer), home=home).returncode == 0  # no keys, nothing asked
    assert "signer" not in locked(home)["extra"]


def locked(home: Path) -> dict[str, Any]:
    experts: dict[str, Any] = json.loads((home / LOCK).read_text())["experts"]
    return experts


def test_a_name_whose_place_is_given_is_no_folder_of_that_name(
    venv: Any, home: Path, index: Path
) -> None:
    """A project's folder has its distribution's name: where its author types, both are there."""
    (venv.folder / "red-expert-extra").mkdir(exist_ok=True)
    done = venv.run("add", "red-expert-extra", "--find-links", str(index), home=home)
    assert done.returncode == 0 and f", from {index})" in done.stdout
    done = venv.run("add", "red-expert-extra", home=home)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert "it is a folder, not a wheel" in done.stderr and "--find-links DIR" in done.stderr
    (venv.folder / "extra").mkdir(exist_ok=True)  # an expert's id is no distribution even so
    done = venv.run("add", "extra", "--find-links", str(index), home=home)
    assert done.returncode == 2 and "is the id of an expert" in done.stderr
    for name in ("red-expert-extra", "extra"):
        (venv.folder / name).rmdir()
