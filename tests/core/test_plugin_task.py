"""A task that a plugin registers: every command has it once the plugin is trusted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import redhost
from redhost.cli import cli
from redhost.core.tasks import HEADS, register_task
from redhost.registry.errors import PluginError, UsageError
from redhost.registry.package.forms import TASKS

CODE = """
from redhost import hookimpl
from redhost.plugins import make_task


class OrdinalHead(type(make_task("classification").head)):
    name = "ordinal"


@hookimpl
def redhost_register_tasks(register):
    register("grades", OrdinalHead)
"""


def forget() -> None:
    """Leave the process as if the plugin had not been imported."""
    TASKS.pop("grades", None)
    HEADS.pop("ordinal", None)
    sys.modules.pop("redhost_grades", None)


@pytest.fixture
def grades(environment, tmp_path, monkeypatch) -> Iterator[None]:
    """Install the plugin, trusted."""
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    entries = {"redhost.plugins": "grades = redhost_grades"}
    environment.install_code("redhost-grades", {"__init__.py": CODE}, entries)
    assert CliRunner().invoke(cli, ["trust", "redhost-grades"]).exit_code == 0
    yield
    forget()


def test_every_command_has_a_trusted_plugins_task(
    environment, grades, model_folder, tmp_path
) -> None:
    rows = [{"text": f"{w} {n}", "label": w} for w in ("red", "blue") for n in range(40)]
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def run(*arguments: str) -> str:
        forget()  # each as in a process of its own
        return CliRunner().invoke(cli, arguments, catch_exceptions=False).output

    run("new-backbone", "b", "--from", f"hf:{model_folder}", "--task", "grades")
    backbone = next(Path("red-backbone-b/src").iterdir())
    assert json.loads((backbone / "backbone.json").read_text())["task"] == "grades"
    assert "ok" in run("check", "red-backbone-b")
    environment.install(tmp_path / "red-backbone-b")
    run("new-expert", "x", "--backbone", "b")
    run("train-expert", "red-expert-x", "--data", "rows.jsonl", "--backbone", "b")
    assert "ok" in run("check", "red-expert-x", "--backbone", "b")
    environment.install(tmp_path / "red-expert-x")
    receipt = json.loads(run("recompose", "--backbone", "b", "--json"))
    assert receipt["experts"].keys() == {"x"}
    evaluated = json.loads(run("evaluate", "--data", "rows.jsonl", "--json"))
    assert evaluated["overall"] > 0.9
    [answer] = json.loads(run("predict", "--json", "red 3"))
    assert answer["label"] == "red"
    run("trust", "--revoke", "redhost-grades")
    forget()
    refused = CliRunner().invoke(cli, ["predict", "red 3"])
    assert refused.exit_code == 1 and isinstance(refused.exception, PluginError)
    assert "redhost-grades" in f"{refused.output} {refused.exception}"


def test_a_task_that_no_trusted_plugin_has_is_refused_by_name(
    environment, grades, model_folder
) -> None:
    run = CliRunner().invoke
    made = ["new-backbone", "b", "--from", f"hf:{model_folder}", "--task", "grades"]
    assert run(cli, made).exit_code == 0
    assert run(cli, ["trust", "--revoke", "redhost-grades"]).exit_code == 0
    forget()
    refused = run(cli, ["check", "red-backbone-b", "--json"])
    assert refused.exit_code == 1
    assert "task_unknown" in refused.output and "redhost trust" in refused.output
    typo = run(cli, ["new-backbone", "c", *made[2:-1], "gradez"])
    assert isinstance(typo.exception, UsageError) and typo.exception.exit_code == 2


def test_a_task_is_registered_again_and_another_of_its_name_is_not() -> None:
    head = type(redhost.plugins.make_task("classification").head)
    register_task("classification", head)
    with pytest.raises(ValueError, match="registered already"):
        register_task("multi-label", head)
