"""The command `redhost`: parse, call, print. No logic, and no torch until a command needs it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, pairwise
from pathlib import Path
from threading import Timer
from typing import Any, TextIO, cast

import click

from . import __version__
from .commands.lazy import PLUGINS, PluginGroup
from .commands.printing import Printable, fill_descriptors
from .registry.errors import MissingError, RedhostError, UsageError

COMMANDS: Mapping[str, Sequence[str]] = {
    "compose": ("predict", "recompose", "route"),
    "evaluate": ("evaluate",),
    "experts": ("disable", "enable", "list-experts"),
    "history": ("gc", "history", "rollback", "status"),
    "packages": ("add", "remove"),
    "plugins": ("plugins", "trust"),
}
"""Module of commands → those that it has; each is a function with the command's name."""

PUBLISHING = ("add", "migrate", "recompose", "remove", "rollback")
"""The commands that make a generation current."""

GOING_ON = ("predict", "train-expert", "train-many")
"""The commands that keep finished work when stopped; predict only with --out."""


class BuiltIn(UserDict[str, Any]):
    """The built-in commands by name; a command's module is imported when the command is needed."""

    def __getitem__(self, name: str) -> click.Command:
        """Return a command."""
        if isinstance(module := self.data[name], str):
            commands = import_module(f".commands.{module}", __package__)
            self.data[name] = getattr(commands, name.replace("-", "_"))
        command: click.Command = self.data[name]
        return command


BUILT_IN = BuiltIn({name: module for module, names in COMMANDS.items() for name in names})

KNOWN = frozenset(chain(BUILT_IN, *PLUGINS.values()))
"""The commands of this project."""

HOMELESS = frozenset(
    {
        "catalogue",
        "fleet",
        "gateway-storm",
        "mlflow",
        "new-backbone",
        "new-key",
        "new-plugin",
        "new-workflow",
        "onnx",
        "plugins",
        "promote",
        "schema",
        "serve-bench",
        "serve-soak",
        "serve-storm",
        "trust",
    }
)
"""Those that act on no home; a command's own options are known only once its plugin is loaded."""


@click.group(cls=PluginGroup, commands=BUILT_IN, invoke_without_command=True)
@click.version_option(__version__)
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
        from .commands.welcome import welcome

        welcome()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit: 0 done, 1 failed, 2 wrong usage, 3 environment, 130 Ctrl-C."""
    # Otherwise torch and pydantic read every package's entry points, and a broken one stops them.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    typed = list(sys.argv[1:] if arguments is None else arguments)
    fill_descriptors()
    sys.stdin = sys.stdin or Path(os.devnull).open()  # noqa: SIM115  (for the whole process)
    out, err = Printable(sys.stdout), Printable(sys.stderr)
    with (
        redirect_stdout(cast("TextIO", out)),
        redirect_stderr(cast("TextIO", err)),
        _interrupting_destructors(),
    ):
        try:
            code: object = _run(typed)
        except SystemExit as e:
            code = e.code
        out.flush()
        if out.fault:
            published = "" if code else _after_publishing(typed)
            click.echo(f"redhost: cannot write standard output: {out.fault}{published}", err=True)
        err.flush()
    sys.exit(cast("int", code) or bool(out.fault))


@contextmanager
def _interrupting_destructors() -> Iterator[None]:
    """Let Ctrl-C in a destructor, which no exception leaves, end the block a moment later.

    Models are loaded by libraries with many of them. Python would print a traceback and go on.
    """
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # A signal, as it also ends a wait.
            again = Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
            again.daemon = True
            again.start()
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = before


def _run(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code; errors are printed."""
    try:
        code = cli.main(arguments, prog_name="redhost", standalone_mode=False)
    except ModuleNotFoundError as e:
        missing = _missing(e, _typed(arguments))
        if missing is None or "--debug" in arguments:
            raise
        click.echo(f"redhost: {missing}", err=True)
        return missing.exit_code
    except RedhostError as e:
        if "--debug" in arguments:
            import traceback

            traceback.print_exc()
        click.echo(f"redhost: {_in_home(str(e), arguments)}", err=True)
        return e.exit_code
    except click.ClickException as e:
        _show(e)
        return 2
    except (click.Abort, KeyboardInterrupt) as e:
        stopped = e.__cause__ if isinstance(e, click.Abort) else e
        doing = f" in {stopped}" if stopped and str(stopped) else ""  # code of a plugin
        click.echo(f"redhost: stopped{doing}{_after_stop(arguments)}", err=True)
        return 130
    except SystemExit as e:
        import traceback

        *_, (frame, _) = traceback.walk_tb(e.__traceback__)
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] == "redhost" or _typed(arguments) not in cli.commands:
            raise
        click.echo(f"redhost: {module} ended the command: sys.exit({e.code!r})", err=True)
        return 1
    return code if isinstance(code, int) else 0


def _in_home(message: str, arguments: Sequence[str]) -> str:
    """Return a message whose commands act on the home that was typed, if one was."""
    typed = [*arguments[: arguments.index("--")]] if "--" in arguments else [*arguments]
    homes = [b for a, b in pairwise(typed) if a == "--home"]
    homes += [a.removeprefix("--home=") for a in typed if a.startswith("--home=")]
    if not homes:
        return message

    def command(match: re.Match[str]) -> str:
        takes = match["verb"] in KNOWN - HOMELESS and "--home" not in match[0]
        return f"{match[0]} --home {shlex.quote(homes[-1])}" if takes else match[0]

    return re.sub(r"(?<=')redhost (?P<verb>[a-z-]+)[^']*(?=')", command, message)


def _missing(error: ModuleNotFoundError, command: str) -> MissingError | None:
    """Return what to install where a package was installed without what it needs.

    None if the module is of a package that is here: then its author made a mistake.
    """
    module = (error.name or "").partition(".")[0]
    if not module or find_spec(module) is not None:
        return None
    from .registry.environment.extras import how_to_install

    extras = (extra for extra, commands in PLUGINS.items() if command in commands)
    others = "Reinstall the package that has it, with all that it requires."
    otherwise = "Run: pip install redhost" if command in BUILT_IN else others
    return MissingError(
        f"command {command!r} needs the module {module!r}, which is not installed",
        hint=next(map(how_to_install, extras), otherwise),
    )


def _show(error: click.ClickException) -> None:
    """Print what click refuses in one line; of a group without a command, its help."""
    if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # since click 8.2
        error.show()
        return
    context = error.ctx if isinstance(error, click.UsageError) else None
    usage = f"All options: '{context.command_path} --help'." if context else ""
    if isinstance(error, click.MissingParameter) and error.param and context:
        click.echo(f"redhost: {_left_out(error.param, context, hint=usage)}", err=True)
        return
    message = " ".join(error.format_message().split())  # click lists choices line by line
    end = "" if message.endswith((".", "?", ")")) else "."
    click.echo(f"redhost: {message}{end} {usage}".rstrip(), err=True)


def _left_out(parameter: click.Parameter, context: click.Context, *, hint: str) -> UsageError:
    """Return the error of a command without an argument or an option that it needs."""
    name, usage = parameter.human_readable_name, context.command.collect_usage_pieces(context)
    expected = repr(" ".join([context.command_path, *usage]))
    if isinstance(parameter, click.Option):  # the usage does not show which are needed
        name, (expected, _) = parameter.opts[0], parameter.get_help_record(context) or ("", "")
    return UsageError(
        f"{context.command_path!r} lacks {name}",
        expected=expected,
        found="none",
        hint=hint,
    )


def _typed(arguments: Sequence[str]) -> str:
    """Return the name of the command that was typed, if there is one."""
    return next((a for a in arguments if not a.startswith("-")), "")


def _after_publishing(arguments: Sequence[str]) -> str:
    """Return a note on the generation of a command whose output was lost, if it published one."""
    if _typed(arguments) not in PUBLISHING or {"--help", "--dry-run"} & {*arguments}:
        return ""
    return "; its generation is published all the same, as redhost status shows"


def _after_stop(arguments: Sequence[str]) -> str:
    """Return a note on what a stopped command leaves, if there is one."""
    command = _typed(arguments)
    if command in PUBLISHING:
        return "; no generation is half published"
    begun = command != "predict" or any(a.partition("=")[0] == "--out" for a in arguments)
    return "; the same command goes on where it stopped" if command in GOING_ON and begun else ""
