"""The commands of docs/generation.md, as they stand, on a tiny random language model."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from redhost.cli import cli
from redhost.testing import Environment

PAGE = Path(__file__).parents[1] / "docs" / "generation.md"


def commands() -> list[str]:
    """Return what stands behind ``$`` in the console blocks, with its continuation lines."""
    blocks = re.findall(r"```console\n(.*?)```", PAGE.read_text("utf-8"), flags=re.DOTALL)
    return [
        c.strip()
        for block in blocks
        for c in re.split(r"^\$ ", block, flags=re.MULTILINE)
        if c.strip()
    ]


def carry_out(command: str, folder: Path, site: Environment) -> str:
    """Run redhost here, pip as the kit does, and anything else in a shell."""
    words = shlex.split(command)
    if words[:2] == ["pip", "install"]:
        return site.install(folder / words[2])
    if words[0] == "redhost":
        done = CliRunner().invoke(cli, words[1:], catch_exceptions=False)
        assert done.exit_code == 0, f"{command}: {done.output}"
        return done.output
    assert words[0] == "python", command
    subprocess.run(
        command.replace("python", shlex.quote(sys.executable), 1),
        shell=True,
        check=True,
        cwd=folder,
        env=dict(os.environ),
    )
    return ""


def test_every_command_of_the_page_runs(speaker_model, tmp_path, monkeypatch) -> None:
    folder, site = tmp_path / "work", tmp_path / "site"
    folder.mkdir()
    site.mkdir()
    shutil.copytree(speaker_model, folder / "my-model")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("REDHOST_HOME", str(folder / "home"))
    monkeypatch.setenv("REDHOST_CONFIG", str(folder / "config"))
    torch.set_num_threads(1)
    found = commands()
    said = {c: carry_out(c, folder, Environment(site)) for c in found}
    texts = [said[c] for c in found if c.startswith("redhost generate")]
    assert len(texts) == 3 and texts[1].startswith(texts[0])
    assert set(json.loads(texts[2])["weights"]) == {"code", "prose", "backbone"}


@pytest.mark.parametrize("option", ["--max-tokens", "--temperature", "--seed", "--explain"])
def test_the_page_and_the_help_tell_the_same_options(option) -> None:
    told = CliRunner().invoke(cli, ["generate", "--help"]).output
    assert option in told and f"`{option}" in PAGE.read_text("utf-8")
