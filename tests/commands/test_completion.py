"""Completion by the Tab key, as the page on installing has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/operations.md").read_text("utf-8")


def redhost(**env: str) -> str:
    command = [Path(sys.executable).with_name("redhost")]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **env}
    ).stdout


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
