"""Commands of other packages: listed with a summary, imported when invoked."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ..registry.package.discover import EntryPointInfo

PLUGINS: Mapping[str, Mapping[str, str]] = {
    "author": {
        "check": "Check experts, or backbones, against their contract.",
        "new-backbone": "Make a backbone package from any model.",
        "new-expert": "Make an expert's project, ready to be trained.",
        "new-key": "Make a key pair to sign wheels with.",
        "new-plugin": "Make a plugin's project, which works as it is.",
        "new-workflow": "Write a workflow that checks and publishes the expert of PROJECT.",
        "pack": "Check each PROJECT and build its wheel.",
        "schema": "Print the JSON Schema of expert.json or backbone.json.",
        "train-expert": "Train the expert of PROJECT, alone, on your data.",
    },
    "doctor": {
        "doctor": "Examine the environment and the home, and say how to mend what is wrong.",
        "why": "Say where the expert ID came from, whether it answers, and if not, why.",
    },
    "fleet": {
        "fleet": "Show and control replicas that follow one store.",
        "promote": "Make a stage serve generation NUMBER, which was pushed; every replica follows.",
        "pull": "Download the generation that a stage serves, and make it current here.",
        "push": "Upload a generation, all its bytes, to the store at URL; it is not served yet.",
    },
    "gateway": {
        "gateway": "Choose the expert of each request, and let OpenAI-like servers answer it.",
        "gateway-storm": "Send requests through a gateway whose upstreams fail; count the errors.",
    },
    "generate": {
        "generate": "Continue PROMPT, token by token; - reads standard input.",
    },
    "index": {
        "catalogue": "List the experts in a FOLDER of wheels.",
        "outdated": "Show which newer versions there are of what is composed.",
        "search": "Find experts of an index that have every WORD.",
        "upgrade": "Compose the newest fitting versions of all experts, or of those with an ID.",
    },
    "merge": {
        "merge": "Merge the current generation into one expert.",
    },
    "mlflow": {
        "mlflow": "Export a generation to MLflow.",
    },
    "onnx": {
        "onnx": "Answer with a generation on onnxruntime, without torch.",
    },
    "peft": {
        "export": "Export an expert's adapter as PEFT's files, or for llama.cpp.",
    },
    "port": {
        "migrate": "Move the whole composition to another backbone.",
        "port": "Port an expert to another backbone.",
    },
    "ray": {
        "deploy": "Run replicas on Ray Serve that follow the store at URL, until Ctrl-C.",
        "sweep": "Try routers on the composed experts, and compare them.",
        "train-many": "Train many experts, those that PLAN lists.",
    },
    "report": {
        "explain": "Explain the answers to TEXTS (or lines of standard input, with -).",
        "report": "Document the current generation in FILE: one self-contained page.",
    },
    "revoke": {
        "revoke": "Add an expert or backbone to a signed list of what is revoked.",
        "revoked": "Show what this home knows to be revoked; fetch a list if an index is named.",
    },
    "robust": {
        "advise": "Report whether the composed domains should be one model or several.",
    },
    "serve": {
        "serve": "Serve the current generation over HTTP; swap it under load.",
        "serve-bench": "Time a query over HTTP against a call in process.",
        "serve-soak": "Answer a million texts while experts change; record the server's memory.",
        "serve-storm": "Swap generations under load, a third of them broken; count the errors.",
    },
    "spans": {},
    "sync": {
        "export-wheels": "Write wheels of all that the project's locks need into FOLDER.",
        "sync": "Make environment and compositions what the project's locks name.",
    },
    "words": {},
}
"""Extra of redhost → the commands of the plugin that it installs, ``redhost-EXTRA``, each with its
first line of help, which is listed before the plugin is imported."""


LAB = "It is part of red-lab: 'pip install -e plugins/red-lab' in a clone of redhost."
"""What to type for the one command of a package that is no plugin."""


class PluginGroup(click.Group):
    """A group whose commands may also come from entry points.

    Built-in names take precedence. Help and completion use a stub with the distribution's summary,
    so a package's code runs only when its command is invoked.

    Attributes:
        entry_points: The group of the entry points.
    """

    entry_points = "redhost.commands"

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return built-in and installed command names, sorted."""
        return sorted({*super().list_commands(ctx), *self._installed(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a built-in command, or a stub that loads the installed one when invoked."""
        command = super().get_command(ctx, cmd_name)
        if command is not None or cmd_name not in (installed := self._installed(ctx)):
            return command
        entry, *others = installed[cmd_name]
        if ctx.resilient_parsing or ctx.meta.get("redhost.typed") != cmd_name:
            summary = _summary(entry, installed)
            return click.Command(cmd_name, short_help=summary, help=summary)
        return _load(entry, others)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve a command; for an unknown one, suggest those with this prefix, or the closest."""
        ctx.meta["redhost.typed"] = args[0] if args else None
        if args and not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None:
            import difflib

            _refuse_absent(args[0])
            names = self.list_commands(ctx)
            close = [name for name in names if args[0] and name.startswith(args[0])]
            close = close or difflib.get_close_matches(args[0], names, n=1)
            hint = LAB if args[0] == "lab" else f"All commands: '{ctx.command_path} --help'."
            hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else hint
            # Without the context, whose usage would make it several lines.
            raise click.UsageError(f"unknown command {args[0]!r}. {hint}")
        return super().resolve_command(ctx, args)

    def _installed(self, ctx: click.Context) -> dict[str, list[EntryPointInfo]]:
        """Return who provides each installed command; read once per command line."""
        from ..registry.package.discover import plugin_entry_points

        if self.entry_points not in ctx.meta:
            entries = sorted(plugin_entry_points(self.entry_points), key=attrgetter("name"))
            ctx.meta[self.entry_points] = {
                name: [*providers] for name, providers in groupby(entries, key=attrgetter("name"))
            }
        installed: dict[str, list[EntryPointInfo]] = ctx.meta[self.entry_points]
        return installed


def import_beside(name: str, value: str, *, needed_for: str) -> Any:
    """Import what a built-in command needs from the plugin that has another command.

    Args:
        name: The other command.
        value: The module and the attribute, as an entry point names them.
        needed_for: What needs it, for messages.

    Raises:
        MissingError: If the plugin is not installed.
        PluginError: If it cannot be loaded.
    """
    from msgspec.structs import replace

    from ..registry.package.discover import canonical, plugin_entry_points

    dists = {f"redhost-{extra}" for extra, commands in PLUGINS.items() if name in commands}
    points = plugin_entry_points("redhost.commands")
    # Only the plugin that has the command: another that declares it was not asked for by its name.
    providers = [e for e in points if e.name == name and canonical(e.dist) in dists]
    if not providers:
        _refuse_absent(name, needed_for)
    first, *others = providers
    return _import(replace(first, value=value), others, f"{needed_for} of {first.dist}")


def _refuse_absent(name: str, needed_for: str = "") -> None:
    """Say which plugin of this project has a command that is not installed, if one has it.

    Raises:
        MissingError: If one has it; the message says what to install.
    """
    from ..registry.environment.extras import how_to_install
    from ..registry.errors import MissingError

    for extra, commands in PLUGINS.items():
        if name in commands:
            what = needed_for or f"command {name!r}"
            raise MissingError(f"{what} is part of redhost-{extra}", hint=how_to_install(extra))


def _summary(entry: EntryPointInfo, installed: Mapping[str, list[EntryPointInfo]]) -> str:
    """Return a command's summary for lists: of others' plugins, their distribution's own."""
    first = min(name for name, by in installed.items() if entry.dist in {e.dist for e in by})
    return PLUGINS.get(entry.dist.removeprefix("redhost-"), {}).get(
        entry.name,
        entry.summary if entry.name == first else f"Comes with {first!r}; has its own --help.",
    )


def _load(entry: EntryPointInfo, others: Sequence[EntryPointInfo]) -> click.Command:
    """Import a command from the files of the distribution that declares it."""
    from ..registry.errors import PluginError

    subject = f"command {entry.name!r} of {entry.dist} {entry.version}"
    command = _import(entry, others, subject)
    if not isinstance(command, click.Command):
        raise PluginError(
            subject,
            expected="a click command",
            found=type(command).__name__,
        )
    return command


def _import(entry: EntryPointInfo, others: Sequence[EntryPointInfo], subject: str) -> Any:
    """Import what an entry point names from the files of the distribution that declares it."""
    from ..registry.environment.importing import import_among, stoppable
    from ..registry.environment.trust import files_of
    from ..registry.errors import PluginError, RedhostError, summary

    entry.require_only()
    if others:
        names = ", ".join(sorted({e.dist for e in others}))
        raise PluginError(f"{subject} is also one of {names}", hint="Uninstall one of them.")
    module, _, attribute = entry.value.partition(":")
    try:
        files = frozenset(map(os.path.realpath, files_of(entry).values()))
        # What it prints while it is imported is no part of what the command prints.
        with stoppable(f"the import of {subject}"), redirect_stdout(sys.stderr):
            return attrgetter(attribute)(import_among(module, files, dist=entry.dist))
    except RedhostError as e:
        raise PluginError(f"{subject} cannot be loaded", found=e.reason, hint=e.hint) from e
    except Exception as e:
        raise PluginError(
            f"{subject} cannot be loaded",
            found=summary(e),
            hint=f"Reinstall or uninstall {entry.dist}.",
        ) from e
