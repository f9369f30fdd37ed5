"""Completion by the Tab key, as the page on installing has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from redhost.cli import main

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text("utf-8")


def redhost(**env: str) -> str:
    command = [Path(sys.executable).with_name("redhost")]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **env}
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_a_function_from_the_line_of_the_page(shell: str) -> None:
    assert f"_REDHOST_COMPLETE={shell}_source redhost" in PAGE
    assert "_redhost_completion" in redhost(_REDHOST_COMPLETE=f"{shell}_source")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("redhost rec", "recompose"), ("redhost evaluate --mix", "--mixtures")],
)
def test_commands_and_options_are_completed(typed: str, offered: str) -> None:
    count = str(len(typed.split()) - 1)
    found = redhost(_REDHOST_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD=count)
    assert found.split() == [f"plain,{offered}"]


@pytest.mark.parametrize("typed", ["redhost recompsoe --", "redhost nothing "])
def test_an_unknown_command_is_no_error_of_the_shell(typed: str) -> None:
    redhost(_REDHOST_COMPLETE="bash_complete", COMP_WORDS=typed, COMP_CWORD="2")


def test_a_command_whose_plugin_is_absent_is_no_error_of_the_shell(monkeypatch, capsys) -> None:
    monkeypatch.setattr("redhost.registry.package.discover.plugin_entry_points", lambda group: ())
    shell = {"_REDHOST_COMPLETE": "bash_complete", "COMP_WORDS": "redhost sweep --"}
    for name, value in {**shell, "COMP_CWORD": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as e:
        main([])
    assert e.value.code == 0 and capsys.readouterr().err == ""
