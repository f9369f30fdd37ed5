"""add and remove: the composition and a real environment change together, or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from warm_start import warm_command

import redhost
from redhost.registry.home.composition import LOCK
from redhost.registry.home.generations import Generations

QUESTION = "What is 37 plus 12?"


@pytest.fixture(scope="module")
def composed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with the shipped experts composed; copy it before changing it."""
    home = tmp_path_factory.mktemp("composed") / "home"
    redhost.Host.open(home, plugins=redhost.plugins.Plugins(())).recompose()
    return home


@pytest.fixture
def home(composed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(composed, tmp_path / "home"))


@pytest.fixture(scope="module")
def shared(make_venv: Any, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return make_venv(tmp_path_factory.mktemp("packages") / "venv")


@pytest.fixture
def venv(shared: Any) -> Any:
    """An environment that is empty again afterwards, as every test must leave it or be undone."""
    yield shared
    for info in shared.site.glob("*.dist-info"):
        shared.pip("uninstall", "--yes", "--quiet", info.name.partition("-")[0])


def state(home: Path) -> dict[str, bytes]:
    """Return every file of a home that says what is composed."""
    left = {"current", LOCK}
    files = {p.relative_to(home).as_posix(): p for p in home.rglob("*") if p.is_file()}
    return {
        name: path.read_bytes()
        for name, path in files.items()
        if name in left or name.startswith(("generations/", "store/"))
    }


def results(session: list[tuple[int, str, str]]) -> list[Any]:
    """Return what the commands of a session printed, all of which must have succeeded."""
    assert all(code == 0 for code, _, _ in session), session
    return [json.loads(out) for _, out, _ in session]


def printed(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_expert_is_added_used_updated_and_removed(
    venv: Any, home: Path, draft: Any, tmp_path: Path, tmp_path_factory: Any
) -> None:
    empty = venv.contents()
    wheel, folder = draft("extra").write(tmp_path), tmp_path_factory.mktemp("i")
    draft("extra", version="0.2.0", domain="newer").write(folder)

    added, listed, status, checked, answers, again = results(
        venv.session(
            ("add", str(wheel), "--json"),
            ("list-experts", "--json"),
            ("status", "--json"),
            ("check", "extra", str(wheel), "--json"),
            ("predict", QUESTION, "--json"),
            ("recompose", "--json"),
            home=home,
        )
    )
    assert (added["id"], added["version"], added["replaced"]) == ("extra", "0.1.0", None)
    assert set(added["receipt"]["experts"]) == {"extra", *(f"range{n}" for n in range(1, 6))}
    assert {x["id"]: x["state"] for x in listed}["extra"] == "attached" and status["drift"] == []
    assert all(x["ok"] for x in checked) and "extra" in again["experts"]
    assert answers[0]["label"] == "49"
    assert again["generation"] == added["receipt"]["generation"] == 2
    locked = json.loads((home / LOCK).read_text())["experts"]["extra"]
    assert (locked["wheel"], locked["digest"]) == (added["wheel"], added["digest"])

    updated, removed = results(
        venv.session(
            ("add", "red-expert-extra", "--find-links", str(folder), "--json"),
            ("remove", "extra", "--json"),
            home=home,
        )
    )
    assert (updated["version"], updated["replaced"]) == ("0.2.0", "0.1.0")
    assert removed["receipt"]["withdrawn"] == ["extra"] and removed["purged"] == []
    assert venv.contents() == empty

    *done, refused = venv.session(
        ("rollback", "--json"),  # the store still has its bytes
        ("predict", QUESTION, "--json"),
        ("remove", "extra", "--purge", "--json"),
        ("rollback", "3"),
        home=home,
    )
    back, answers, purged = results(done)
    assert "extra" in back["experts"] and answers[0]["label"] == "49"
    assert (purged["dist"], len(purged["purged"]), purged["unreachable"]) == (None, 2, [2, 3])
    assert refused[0] == 3 and "the store lacks bytes" in refused[2]


def test_adding_what_is_composed_already_changes_nothing(
    venv: Any, home: Path, draft: Any, tmp_path: Path
) -> None:
    wheel = draft("extra").write(tmp_path)
    [added, row] = results(
        venv.session(
            ("add", str(wheel), "--json"),
            ("add", str(wheel), "--level", "row", "--accept", "--json"),
            home=home,
        )
    )
    assert row["receipt"]["parent"] == added["receipt"]["generation"]  # asked for, so done
    before, files = state(home), venv.contents()
    again, human = venv.session(
        ("add", str(wheel), "--json"), ("add", str(wheel), "--try"), home=home
    )
    assert json.loads(again[1]) == {**row, "replaced": None} and human[0] == 0
    assert human[1].count("\n") == 1 and "generation 3 already" in human[1]
    assert (state(home), venv.contents()) == (before, files)
    venv.pip("uninstall", "--yes", "red-expert-extra")  # composed, and no longer installed
    assert results(venv.session(("add", str(wheel), "--json"), home=home))[0]["replaced"] is None
    assert "extra" in venv.listed(home, key="id")


def test_add_says_so_where_another_build_has_the_same_version(
    venv: Any, home: Path, draft: Any, tmp_path: Path
) -> None:
    wheels = []
    for n, version in enumerate(("0.1.0", "0.1.0", "0.2.0")):
        (folder := tmp_path / str(n)).mkdir()
        wheels.append(draft("extra", version=version, domain=f"sums {n}").write(folder))
    added = ("add", str(wheels[0]), "--accept")
    done = venv.session(*(("add", str(wheel), "--accept") for wheel in wheels), added, home=home)
    assert [code for code, _, _ in done] == [0, 0, 0, 0], done
    assert ["raise the version" in out for _, out, _ in done] == [False, True, False, False]
    assert ["older than 0.2.0" in out for _, out, _ in done] == [False, False, False, True]
    venv.pip("uninstall", "--yes", "red-expert-extra")  # now 0.1.0 is composed, and nothing here
    (older := tmp_path / "older").mkdir()
    oldest = draft("extra", version="0.0.9").write(older)
    [(code, out, _)] = venv.session(("add", str(oldest), "--accept", "--json"), home=home)
    assert code == 0 and json.loads(out)["older_than"] == "0.1.0"


def test_what_fails_a_gate_is_not_installed(venv: Any, home: Path, draft: Any, tmp_path) -> None:
    before = venv.contents(), state(home)
    wheel = draft("extra", off_domain=1e-6).write(tmp_path)
    done = venv.run("add", str(wheel), home=home)
    assert done.returncode == 1 and done.stderr.count("\n") == 1 and "off_domain" in done.stderr
    assert (venv.contents(), state(home)) == before


def test_a_wheel_of_something_else_is_wrong_usage(venv: Any, home: Path, draft: Any, tmp_path):
    drafted = draft("extra")
    points = f"[redhost.backbones]\nx = {drafted.module}\n".encode()
    drafted.members[f"{drafted.info}/entry_points.txt"] = points
    done = venv.run("add", str(drafted.write(tmp_path)), home=home)
    assert done.returncode == 2 and "is a backbone, not an expert" in done.stderr


def test_an_id_that_another_package_provides_is_refused(
    venv: Any, home: Path, draft: Any, tmp_path: Path
) -> None:
    before = venv.contents(), state(home)
    drafted = draft("other", id="range3")
    points = f"[redhost.experts]\nrange3 = {drafted.module}\n".encode()
    drafted.members[f"{drafted.info}/entry_points.txt"] = points
    done = venv.run("add", str(drafted.write(tmp_path)), home=home)
    assert done.returncode == 1 and "provided by red-expert-range3" in done.stderr
    assert (venv.contents(), state(home)) == before


@pytest.mark.parametrize(
    "target", ["a folder", "red expert", "x @ https://example.org/x.whl", "-r"]
)
def test_a_target_that_is_neither_wheel_nor_name_is_wrong_usage(venv, home, tmp_path, target):
    (tmp_path / "a folder").mkdir()
    path = str(tmp_path / "a folder") if target == "a folder" else target
    done = venv.run("add", "--", path, home=home)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def test_a_name_that_nobody_has_is_exit_3(venv: Any, home: Path, tmp_path: Path) -> None:
    done = venv.run("add", "red-expert-none", "--find-links", str(tmp_path), home=home)
    assert done.returncode == 3 and "cannot download red-expert-none" in done.stderr


BREAK = """
import os, signal, sys
from redhost.core.composition import changes
from redhost.registry.environment import installer
from redhost.registry.errors import StoreError
{change}
from redhost.cli import main
main(sys.argv[1:])
"""
FULL = "def publish(*_, **__): raise StoreError('the disk is full')\nchanges.publish = publish"
KILL = "def publish(*_, **__): os.kill(os.getpid(), signal.SIGKILL)\nchanges.publish = publish"
OTHER = "installer._verify = lambda *_: (_ for _ in ()).throw(StoreError('other bytes'))"
NO_RESTORE = "\ninstaller.EnvironmentBackup.restore = lambda self: None"


@pytest.fixture
def broken_add(venv: Any, home: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Return the function that adds a wheel in a process where something else breaks."""

    def run(change: str, wheel: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            warm_command("-c", BREAK.format(change=change), "add", str(wheel), python=venv.python),
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "REDHOST_HOME": str(home), "PIP_TARGET": str(home / "elsewhere")},
        )

    return run


@pytest.mark.parametrize("change", [FULL, OTHER], ids=["publish fails", "other bytes installed"])
def test_when_anything_fails_the_version_before_is_back(
    venv: Any, home: Path, draft: Any, tmp_path: Path, broken_add: Any, change: str
) -> None:
    assert venv.install(draft("extra").write(tmp_path)).returncode == 0
    before = venv.contents(), state(home)
    done = broken_add(change, draft("extra", version="0.2.0").write(tmp_path))
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    after = {n: d for n, d in state(home).items() if not n.startswith("store/")}
    assert after == {n: d for n, d in before[1].items() if not n.startswith("store/")}
    assert venv.contents() == before[0]


def test_when_the_first_installation_fails_nothing_is_left(
    venv: Any, home: Path, draft: Any, tmp_path: Path, broken_add: Any
) -> None:
    before = venv.contents()
    assert broken_add(FULL, draft("extra").write(tmp_path)).returncode == 3
    assert venv.contents() == before


def test_control_without_restoring_leaves_what_was_refused(
    venv: Any, home: Path, draft: Any, tmp_path: Path, broken_add: Any
) -> None:
    before = venv.contents()
    broken_add(FULL + NO_RESTORE, draft("extra").write(tmp_path))
    assert venv.contents() != before  # wrong: what we guard against


def test_killed_between_install_and_publish_the_home_is_unchanged_and_status_tells(
    venv: Any, home: Path, draft: Any, tmp_path: Path, broken_add: Any
) -> None:
    before = state(home)
    assert broken_add(KILL, draft("extra").write(tmp_path)).returncode == -signal.SIGKILL
    assert state(home) == before
    drift = printed(venv.run("status", "--json", home=home))["drift"]
    assert [(d["id"], d["kind"]) for d in drift] == [("extra", "new")]
    assert "extra" in printed(venv.run("recompose", "--json", home=home))["experts"]


def test_remove_refuses_to_uninstall_what_lists_files_of_others(
    venv: Any, home: Path, draft: Any, tmp_path: Path
) -> None:
    drafted = draft("extra")
    drafted.members["torch/intruder.py"] = b""
    venv.install(drafted.write(tmp_path))
    before = venv.contents(), state(home)
    done = venv.run("remove", "extra", home=home)
    assert done.returncode == 1 and "torch/" in done.stderr
    assert (venv.contents(), state(home)) == before


def test_remove_of_what_is_neither_installed_nor_composed_is_wrong_usage(venv, home) -> None:
    done = venv.run("remove", "rang3", home=home)
    assert done.returncode == 2 and "Did you mean 'range3'" in done.stderr


@pytest.mark.parametrize("is_there", [False, True])
def test_remove_in_a_folder_that_is_no_home_uninstalls_nothing(
    is_there: bool, venv: Any, home: Path, draft: Any, tmp_path: Path
) -> None:
    venv.install(draft("extra").write(tmp_path))
    mistyped, before = tmp_path / "hmoe", venv.contents()
    if is_there:
        mistyped.mkdir()
    for more in (("--home", str(mistyped)), ("--question", "mood")):
        done = venv.run("remove", "extra", *more, home=home)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
        assert "not composed in" in done.stderr or f"composed in {mistyped}. Run" in done.stderr
        assert "or uninstall it alone with 'pip uninstall red-expert-extra'." in done.stderr
    assert venv.contents() == before
    assert [*mistyped.rglob("*")] == [] and mistyped.exists() == is_there
    assert venv.run("remove", "extra", home=home).returncode == 0


def test_an_expert_that_was_never_composed_is_just_uninstalled(
    venv: Any, home: Path, draft: Any, tmp_path: Path
) -> None:
    empty = venv.contents()
    venv.install(draft("extra").write(tmp_path))
    removed = printed(venv.run("remove", "red-expert-extra", "--json", home=home))
    assert removed["receipt"] is None and removed["dist"] == "red-expert-extra"
    assert venv.contents() == empty
    assert Generations(home).current() == 1
