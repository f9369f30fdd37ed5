"""No printed text controls the terminal, on either output."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import click
import pytest

from redhost import cli  # noqa: F401  (the child process reads it)
from redhost.commands.printing import Printable
from redhost.commands.progress import draw
from redhost.registry.environment import python_command
from redhost.registry.errors import MissingError

ODD = "\x1b]0;owned\x07\x9b2J\r\u202e"


@click.command("odd")
@click.argument("how")
def odd(how: str) -> None:
    """Print what a stranger wrote, in each of the ways there are."""
    match how:
        case "echo":
            click.echo(ODD, err=True)
            click.echo(ODD)
        case "stream":
            sys.stderr.write(ODD)
            sys.stderr.writelines([ODD])
        case "print":
            print(ODD, file=sys.stderr)  # noqa: T201
        case "warning":
            warnings.warn(ODD, stacklevel=1)
        case "log":
            logging.getLogger("strange").warning(ODD)
        case "usage":
            raise click.UsageError(ODD)
        case "traceback":
            try:
                raise KeyError(ODD) from RuntimeError(ODD)
            except KeyError as e:
                raise MissingError(ODD, found=ODD) from e


WAYS = ("echo", "stream", "print", "warning", "log", "usage", "traceback")


@pytest.mark.parametrize("how", WAYS)
def test_what_a_stranger_wrote_is_escaped_on_both_outputs(how) -> None:
    """In a process of its own: pytest has its own ways with warnings and logs."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTHONUTF8": "1"}
    code = "import test_printing as t; t.cli.cli.add_command(t.odd); t.cli.main()"
    run = [*python_command("-c", code), "--debug", "odd", how]
    done = subprocess.run(run, check=False, capture_output=True, env=environment)
    printed = (done.stdout + done.stderr).decode()
    assert "owned" in printed and printed.replace("\n", "").replace("\t", "").isprintable()
    assert ("Traceback" in printed) == (how == "traceback")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_and_what_stands_beside_it_is_escaped(monkeypatch: Any) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", Printable(terminal))
    monkeypatch.setenv("TERM", "xterm")
    with draw("recompose") as stages:
        stages.stage(f"name {ODD}", f"note {ODD}")(1, 2)
        click.echo(f"meanwhile {ODD}", err=True)
    drawn = terminal.getvalue()
    assert "\x1b[" in drawn  # control: what draws is let through
    assert drawn.count("owned") >= 3
    assert not {"\x07", "\x9b", "\u202e"} & {*drawn} and "\x1b]" not in drawn
