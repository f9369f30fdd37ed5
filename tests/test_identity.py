"""A package that calls itself like another one, or names another's module, runs nothing.

Each attack is what a wheel leaves that plain pip installs: several metadata folders, and entry
points to whatever it likes. One is tried as users run commands, in a process of its own.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from redhost_author.testing import backbone_project, expert_project
from warm_start import warm_command

from redhost.cli import main
from redhost.testing import Environment

PLUGIN = "import redhost\n\n@redhost.hookimpl\ndef redhost_composed(receipt):\n    pass\n"
MARK = "import pathlib\npathlib.Path({mark!r}).touch()\n"
COMMANDS = (
    ("plugins",),
    ("list-experts",),
    ("recompose", "--accept"),
    ("predict", "zero 1"),
)


class Place(Environment):
    """A site folder with a backbone, an expert and a plugin that the user trusts."""

    @property
    def mark(self) -> Path:
        return self.folder.parent / "the attacker's code ran"

    def variables(self) -> dict[str, str]:
        home = self.folder.parent / "home"
        return {"REDHOST_HOME": str(home), "REDHOST_CONFIG": str(home / "config")}

    def run(self, *command: str, code: int = 0) -> str:
        """Run a command in this process; return what it printed."""
        printed = io.StringIO()
        with redirect_stdout(printed), redirect_stderr(printed), pytest.raises(SystemExit) as e:
            main(command)
        assert int(e.value.code or 0) == code, (command, printed.getvalue())
        return printed.getvalue()

    def run_apart(self, *command: str) -> None:
        """Run a command in a process of its own; it must do its work."""
        path = {"PYTHONPATH": str(self.folder), "OMP_NUM_THREADS": "1"}
        subprocess.run(
            warm_command("-m", "redhost", *command),
            check=True,
            capture_output=True,
            cwd=self.folder.parent,
            env={**os.environ, **self.variables(), **path},
        )

    def states(self, dist: str) -> list[tuple[str, str]]:
        found = json.loads(self.run("plugins", "--json"))
        return [(x["state"], x["reason"] or "") for x in found if x["dist"] == dist]

    def brings(self, info: str, name: str, entries: str, files: dict[str, str]) -> None:
        """Leave what an evil wheel brings: files, and a metadata folder that lists them."""
        folder = self.folder / info
        folder.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 9\n"
        (folder / ("METADATA" if info.endswith("dist-info") else "PKG-INFO")).write_text(text)
        (folder / "entry_points.txt").write_text(entries)
        for file, code in files.items():
            (self.folder / file).parent.mkdir(exist_ok=True)
            (self.folder / file).write_text(code)
        listed = [*files, *(f"{info}/{p.name}" for p in folder.iterdir())]
        rows = (self._row(self.folder / file) for file in listed)
        (folder / "RECORD").write_text("".join(f"{row}\n" for row in [*rows, f"{info}/RECORD,,"]))

    def evil(self) -> str:
        return MARK.format(mark=str(self.mark)) + PLUGIN


@pytest.fixture(scope="module")
def projects(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("projects")
    backbone = backbone_project(folder / "red-backbone-tiny-random")
    return backbone, expert_project(folder / "red-expert-one", "one", backbone)


@pytest.fixture
def place(
    projects: tuple[Path, Path], environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> Place:
    place = Place(environment.folder)
    for name, value in place.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(place.folder.parent)
    Path("pyproject.toml").write_text('[tool.redhost]\nbackbone = "tiny-random"\n')
    for project in projects:
        place.install(project)
    files = {"__init__.py": "", "hooks.py": PLUGIN, "other.py": "raise SystemExit('other')\n"}
    place.install_code("good-plugin", files, {"redhost.plugins": "good = good_plugin.hooks"})
    place.run("trust", "good-plugin")
    assert place.states("good-plugin") == [("loaded", "")]
    return place


ENTRY = "[redhost.plugins]\ngood = evil_a0\n"


@pytest.mark.parametrize(
    "info",
    [
        "good_plugin-0.9.dist-info",
        "Good.Plugin-9.egg-info",
    ],
)
def test_a_second_metadata_folder_of_a_trusted_name_runs_nothing(place: Place, info: str) -> None:
    place.brings(info, "Good_Plugin", ENTRY, {"evil_a0.py": place.evil()})
    for command in COMMANDS:
        place.run(*command)
    states = place.states("good-plugin") + place.states("Good_Plugin")
    assert [state for state, _ in states] == ["failed", "failed"]
    assert all(info in why and "good_plugin-1.0.dist-info" in why for _, why in states)
    assert "several installed packages" in place.run("trust", "good-plugin", code=1)
    assert not place.mark.exists()


@pytest.mark.parametrize("info", ["a0.egg-info", "zz-9.dist-info"])
def test_a_folder_is_no_trusted_plugin_because_a_file_in_it_says_so(
    place: Place, info: str
) -> None:
    place.brings(info, "Good_Plugin", ENTRY, {"evil_a0.py": place.evil()})
    for command in COMMANDS:
        place.run(*command)
    assert place.states("good-plugin") == [("loaded", "")]
    [(state, _)] = place.states(info[:2])
    assert state == "untrusted" and not place.mark.exists()


def test_nor_does_it_in_a_process_of_its_own(place: Place) -> None:
    place.brings("a0.egg-info", "good-plugin", ENTRY, {"evil_a0.py": place.evil()})
    for command in COMMANDS:
        place.run_apart(*command)
    assert not place.mark.exists()


def test_other_plugins_and_experts_go_on_beside_it(place: Place) -> None:
    place.install_code("fine", {"__init__.py": PLUGIN}, {"redhost.plugins": "fine = fine"})
    place.run("trust", "fine")
    place.brings("a0.egg-info", "good-plugin", ENTRY, {"evil_a0.py": place.evil()})
    assert place.states("fine") == [("loaded", "")]
    [expert] = [x for x in json.loads(place.run("list-experts", "--json")) if x["id"] == "one"]
    assert expert["state"] == "enabled"


def test_a_folder_that_the_path_leads_to_twice_is_one(place: Place, monkeypatch: Any) -> None:
    (place.folder.parent / "again").symlink_to(place.folder)
    monkeypatch.syspath_prepend(str(place.folder.parent / "again"))
    assert place.states("good-plugin") == [("loaded", "")]


@pytest.mark.parametrize(
    ("value", "brought"),
    [
        ("other_module", {"other_module.py": "{evil}"}),
        (
            "other_package.inner",
            {"other_package/__init__.py": "{evil}", "other_package/inner.py": ""},
        ),
        ("other_folder.inner", {"other_folder/inner.py": "{evil}"}),
        ("json", {}),
        ("sys", {}),
        ("redhost.plugins", {}),
        ("no_such_module", {}),
        ("lender.nothing", {}),
        ("__main__", {}),
    ],
)
def test_trust_does_not_lend_itself_to_modules_of_others(
    place: Place, value: str, brought: dict[str, str]
) -> None:
    """A trusted plugin whose entry point names another distribution's module, or nobody's."""
    files = {file: code.format(evil=place.evil()) for file, code in brought.items()}
    for file, code in files.items():
        (place.folder / file).parent.mkdir(exist_ok=True)
        (place.folder / file).write_text(code)
    place.install_code("lender", {"__init__.py": ""}, {"redhost.plugins": f"lend = {value}"})
    place.run("trust", "lender")
    [(state, reason)] = place.states("lender")
    assert state == "failed" and repr(value) in reason and "expected a file of lender" in reason
    assert not place.mark.exists()


def test_a_plugin_may_lie_in_a_namespace(place: Place) -> None:
    """Control: its parent packages have no code, or are its own."""
    files = {
        "acme/deep/hooks.py": PLUGIN,
        "acme/other/__init__.py": "",
        "acme/other/more.py": PLUGIN,
    }
    (place.folder / "acme/deep").mkdir(parents=True)
    (place.folder / "acme/other").mkdir()
    entries = "[redhost.plugins]\na = acme.deep.hooks\nb = acme.other.more\n"
    place.brings("spaced-9.dist-info", "spaced", entries, files)
    place.run("trust", "spaced")
    assert place.states("spaced") == [("loaded", ""), ("loaded", "")]


def test_a_module_in_the_current_folder_is_not_the_plugins(place: Place) -> None:
    place.uninstall("good-plugin")
    folder = place.folder.parent / "good_plugin"
    folder.mkdir()
    (folder / "__init__.py").write_text(place.evil())
    (folder / "hooks.py").write_text(place.evil())
    place.brings(
        "good_plugin-1.0.dist-info",
        "good-plugin",
        ENTRY.replace("evil_a0", "good_plugin.hooks"),
        {},
    )
    place.run("trust", "good-plugin")
    assert place.states("good-plugin")[0][0] == "failed" and not place.mark.exists()


@pytest.mark.parametrize("file", ["helper/__init__.py", "helper.abi3.so", "hooked/__init__.py"])
def test_what_python_prefers_to_a_plugins_module_ends_trust(place: Place, file: str) -> None:
    entries = "[redhost.plugins]\na = hooked\n"
    files = {"hooked.py": "import helper\n" + PLUGIN, "helper.py": ""}
    place.brings("topped-9.dist-info", "topped", entries, files)
    place.run("trust", "topped")
    assert place.states("topped") == [("loaded", "")]
    (place.folder / file).parent.mkdir(exist_ok=True)
    (place.folder / file).write_text(place.evil())
    assert place.states("topped")[0][0] == "untrusted"
    assert not place.mark.exists()


def test_byte_code_that_claims_a_plugins_source_is_not_run(place: Place) -> None:
    """Python compares it with a hash of the source, which anybody can compute."""
    import importlib._bootstrap_external as machinery

    source = place.package("good-plugin") / "hooks.py"
    code = compile(place.evil(), str(source), "exec")
    claim = util.source_hash(source.read_bytes())
    cache = Path(util.cache_from_source(str(source)))
    cache.parent.mkdir(exist_ok=True)
    cache.write_bytes(machinery._code_to_hash_pyc(code, claim, True))  # type: ignore[attr-defined]
    del sys.modules["good_plugin.hooks"]  # as in a new process
    assert place.states("good-plugin") == [("loaded", "")] and not place.mark.exists()


def test_an_entry_point_that_record_lacks_is_not_trusted(place: Place) -> None:
    """It could change without a change of what is listed."""
    record = place.folder / "good_plugin-1.0.dist-info" / "RECORD"
    rows = [row for row in record.read_text().splitlines() if "entry_points" not in row]
    record.write_text("\n".join(rows) + "\n")
    assert "entry_points.txt" in place.run("trust", "good-plugin", code=1)
    assert place.states("good-plugin")[0][0] == "loaded"  # its content is what it was


def test_code_that_changed_since_it_was_imported_is_not_taken_for_the_new(place: Place) -> None:
    source = place.package("good-plugin") / "hooks.py"
    source.write_text(PLUGIN + "\n# newer\n")
    place.seal("good-plugin")
    place.run("trust", "good-plugin")
    [(state, reason)] = place.states("good-plugin")
    assert state == "failed" and "changed after this process had imported" in reason


COMMAND = "import click\n\n@click.command()\ndef hello():\n    click.echo('hello')\n"


@pytest.mark.parametrize(
    ("info", "name", "entry"),
    [
        ("a0.egg-info", "shouter", "shout = evil_a0:hello"),
        ("shouter-9.egg-info", "shouter", "more = evil_a0:hello"),
        ("zz-9.dist-info", "zz", "shout = evil_a0:hello"),
    ],
)
def test_a_command_of_two_owners_is_not_run(place: Place, info: str, name: str, entry: str) -> None:
    place.install_code(
        "shouter", {"__init__.py": COMMAND}, {"redhost.commands": "shout = shouter:hello"}
    )
    assert place.run("shout") == "hello\n"
    code = {"evil_a0.py": place.evil() + COMMAND}
    place.brings(info, name, f"[redhost.commands]\n{entry}\n", code)
    printed_text = place.run("shout", code=1)
    assert (
        printed_text.count("\n") == 1
        and "shouter" in printed_text
        and (info in printed_text or name in printed_text)
    )
    place.run("list-experts")
    assert not place.mark.exists()


def test_a_command_comes_from_its_own_distribution(place: Place) -> None:
    (place.folder / "elsewhere.py").write_text(place.evil() + COMMAND)
    entry = {"redhost.commands": "shout = elsewhere:hello"}
    place.install_code("shouter", {"__init__.py": ""}, entry)
    printed_text = place.run("shout", code=1)
    assert "expected a file of shouter" in printed_text and printed_text.count("\n") == 1
    assert not place.mark.exists()


def test_two_experts_of_one_distribution_are_both_named(place: Place, projects: Any) -> None:
    """And a folder that only calls itself like one changes nothing for it."""
    place.run("recompose")
    (place.folder / "thief").mkdir()
    entries = "[redhost.experts]\nthief = thief\n"
    place.brings("a0.egg-info", "red-expert-one", entries, {"thief/__init__.py": place.evil()})
    listed = json.loads(place.run("list-experts", "--json"))
    mine = {x["id"]: (x["state"], x["code"]) for x in listed if x["dist"] == "red-expert-one"}
    assert mine == {"one": ("attached", None)}
    assert json.loads(place.run("recompose", "--json"))["withdrawn"] == []
    info = place.folder / "red_expert_one-0.1.0.dist-info"
    copy = place.folder / "red_expert_one-0.2.0.dist-info"
    copy.mkdir()
    for file in info.iterdir():
        text = file.read_text().replace("one-0.1.0", "one-0.2.0").replace("on: 0.1.0", "on: 0.2.0")
        (copy / file.name).write_text(text)
    rows = [r for r in (copy / "RECORD").read_text().splitlines() if "dist-info/METADATA" not in r]
    data = (copy / "METADATA").read_bytes()
    sha = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    rows.append(f"{copy.name}/METADATA,sha256={sha},{len(data)}")
    (copy / "RECORD").write_text("\n".join(rows) + "\n")
    listed = json.loads(place.run("list-experts", "--json"))
    both = [x for x in listed if x["id"] == "one"]
    assert [x["code"] for x in both] == ["duplicate_id"] * 2
    assert all(info.name in x["reason"] and copy.name in x["reason"] for x in both)
    assert "red_expert_one-0.2.0" in place.run("check", "one", code=1)
    place.run("remove", "one", code=1)
    assert not place.mark.exists()


def test_a_package_of_entry_points_alone_takes_nobodys_name(place: Place) -> None:
    """Control: one that brings a file of that name is a collision, of both."""
    place.run("recompose", "--accept")
    entries = (
        "[redhost.experts]\none = red_expert_one\n"
        "[redhost.backbones]\ntiny-random = red_backbone_tiny_random\n"
    )
    place.brings("claimant-9.dist-info", "claimant", entries, {})
    listed = {x["dist"]: x for x in json.loads(place.run("list-experts", "--json"))}
    assert (listed["red-expert-one"]["state"], listed["red-expert-one"]["code"]) == (
        "attached",
        None,
    )
    assert listed["claimant"]["code"] == "taken_top_level"
    assert "red-expert-one" in listed["claimant"]["reason"]
    assert json.loads(place.run("recompose", "--json"))["withdrawn"] == []
    place.run("predict", "zero 1")
    assert "one: ok" in place.run("check", "one", code=1)  # the claimant's is reported as well
    place.brings("thief-9.dist-info", "thief", "", {"red_expert_one/more.py": place.evil()})
    listed = {x["dist"]: x for x in json.loads(place.run("list-experts", "--json"))}
    assert "thief" in listed["red-expert-one"]["reason"]
