"""The command `redhost`: parse, call, print. No logic, and no torch until a command needs it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from typing import TextIO, cast

import click

from .commands.lazy import PluginGroup
from .commands.printing import Printable
from .commands.welcome import welcome
from .registry.errors import RedhostError

GROUPS = (
    "author",
    "compose",
    "evaluate",
    "experts",
    "generate",
    "history",
    "keys",
    "merge",
    "packages",
    "plugins",
    "port",
    "sweep",
    "training",
)
"""The modules of commands; each has its own in ``COMMANDS``."""

PUBLISHING = ("add", "migrate", "recompose", "remove", "rollback")
"""The commands that make a generation current."""

GOING_ON = ("predict", "train-expert", "train-many")
"""The commands that keep finished work when stopped; predict only with --out."""


@click.group(cls=PluginGroup, invoke_without_command=True)
@click.version_option(package_name="redhost")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
@click.option("-v", "--verbose", count=True, help="Log more; repeat for debug output.")
@click.pass_context
def cli(context: click.Context, *, verbose: int) -> None:
    """Compose neural experts from installed packages; retrain only the router."""
    if verbose:
        import logging

        logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("redhost").setLevel(logging.INFO if verbose == 1 else logging.DEBUG)
    if context.invoked_subcommand is None:
        welcome()


for group in GROUPS:
    for command in import_module(f".commands.{group}", __package__).COMMANDS:
        cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 3 environment, 130 Ctrl-C."""
    # Otherwise importing torch reads every package's entry points, and a broken one would stop it.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    out, err = (cast("TextIO", Printable(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(err):
        sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code; errors are printed."""
    try:
        code = cli.main(arguments, prog_name="redhost", standalone_mode=False)
    except RedhostError as e:
        if "--debug" in arguments:
            traceback.print_exc()
        click.echo(f"redhost: {e}", err=True)
        return e.exit_code
    except click.ClickException as e:
        e.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        click.echo(f"redhost: stopped{_after_stop(arguments)}", err=True)
        return 130
    return code if isinstance(code, int) else 0


def _after_stop(arguments: Sequence[str]) -> str:
    """Return a note on what a stopped command leaves, if there is one."""
    command = next((a for a in arguments if not a.startswith("-")), "")
    if command in PUBLISHING:
        return "; no generation is half published"
    begun = command != "predict" or any(a.partition("=")[0] == "--out" for a in arguments)
    return "; the same command goes on where it stopped" if command in GOING_ON and begun else ""
