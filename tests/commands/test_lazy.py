"""Commands of other packages: never imported to be listed, and never in the way."""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from redhost import MissingError
from redhost.cli import COMMANDS, cli
from redhost.commands.lazy import PLUGINS, PluginGroup, import_beside
from redhost.registry.environment.extras import how_to_install
from redhost.registry.package import discover
from redhost.registry.package.discover import plugin_entry_points
from redhost.registry.package.forms import PLUGIN_TASKS

ONE = """
import sys
from redhost.cli import COMMANDS, main

try:
    main(["list-experts", "--help"])
except SystemExit:
    print(*(m for m in COMMANDS if f"redhost.commands.{m}" in sys.modules), file=sys.stderr)
"""
ROOT = Path(__file__).parents[2]
HELLO = "import click\n\n@click.command()\ndef hello():\n    click.echo('hello')\n"


def install(environment, code: str, entry: str = "shout = shouter:hello") -> None:
    environment.install_code("shouter", {"__init__.py": code}, {"redhost.commands": entry})


def test_each_built_in_command_is_the_function_of_its_name() -> None:
    names = sorted(name for names in COMMANDS.values() for name in names)
    assert sorted(cli.commands) == names
    assert [command.name for _, command in sorted(cli.commands.items())] == names


def test_a_command_imports_its_module_and_what_that_shares() -> None:
    done = subprocess.run([sys.executable, "-c", ONE], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["experts"] and "list-experts" in done.stdout


LIGHT = """
import gc, sys
from redhost.cli import main

try:
    main(["list-experts", "--home", sys.argv[1]])
except SystemExit:
    modules = [m for name, m in sys.modules.items() if name.startswith("redhost.")]
    names = [(x, name) for module in modules for name, x in vars(module).items()]
    slow = {name for x, name in names if "__dataclass_fields__" in getattr(x, "__dict__", ())}
    slow |= {"difflib", "secrets"} & sys.modules.keys()
    print(gc.get_freeze_count() > 0, *slow, file=sys.stderr)
"""


def test_list_experts_compiles_no_dataclass_and_lets_nothing_imported_be_collected(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", LIGHT, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == "True\n" and "range1" in done.stdout


MUTE = "class MuteError(Exception):\n    __str__ = None\n\nraise MuteError"


@pytest.mark.parametrize(
    "code", ["raise SystemExit(0)", "1 / 0", "this is no Python", "x = 1", MUTE]
)
def test_a_command_that_cannot_be_loaded_is_one_line_and_exit_1(environment, call, code) -> None:
    install(environment, code)
    exit_code, out, err = call("shout")
    assert exit_code == 1 and out == ""
    assert err.startswith("redhost: command 'shout' of shouter") and err.count("\n") == 1


def test_what_is_no_command_is_named(environment, call) -> None:
    install(environment, "hello = 3")
    assert "expected a click command, found int" in call("shout")[2]


def test_a_command_may_be_an_attribute_of_an_attribute(environment, call) -> None:
    code = f"{HELLO}\n\nclass Commands:\n    greeting = hello\n"
    install(environment, code, "shout = shouter:Commands.greeting [loud]")
    assert call("shout") == (0, "hello\n", "")


def test_what_is_printed_by_an_import_is_no_output_of_the_command(environment, call) -> None:
    install(environment, f"print('loading')\n{HELLO}")
    assert call("shout") == (0, "hello\n", "loading\n")


def test_a_built_in_command_reads_no_entry_points(call, monkeypatch) -> None:
    monkeypatch.setattr(discover, "plugin_entry_points", None)
    assert call("list-experts", "--help")[0] == 0
    with pytest.raises(TypeError):
        call("shout")


def test_other_commands_do_not_import_it(environment, call, tmp_path) -> None:
    install(environment, "raise SystemExit('imported')")
    for arguments in ("--help", "schema", "status"):
        assert call(arguments)[0] == 0


def test_help_of_an_installed_command_is_its_own(environment, call) -> None:
    install(environment, HELLO.replace("def hello():", "def hello():\n    '''Say hello.'''"))
    assert "Say hello." in call("shout", "--help")[1]


def test_a_group_of_commands_may_be_installed(environment, call) -> None:
    code = (
        "import click\n\n@click.group()\ndef hello():\n    pass\n\n"
        "@hello.command()\n@click.argument('who')\ndef to(who):\n    click.echo('hello ' + who)\n"
    )
    install(environment, code)
    assert call("shout", "to", "you")[:2] == (0, "hello you\n")


def test_an_error_of_an_installed_command_is_one_line_too(environment, call) -> None:
    code = HELLO.replace("click.echo('hello')", "raise redhost.MissingError('no voice')")
    install(environment, "import redhost\n" + code)
    assert call("shout") == (3, "", "redhost: no voice\n")


def test_a_list_tells_commands_of_one_distribution_apart(environment, call) -> None:
    install(environment, HELLO, "shout = shouter:hello\nshout-twice = shouter:hello")
    lines = call("--help")[1].splitlines()
    assert [line.split()[1:3] for line in lines if "  shout-twice" in line] == [["Comes", "with"]]
    assert not [line for line in lines if "  shout " in line and "Comes" in line]


def test_an_unknown_command_names_those_that_begin_so_or_where_all_are(call) -> None:
    for typed, hint in (
        ("train", "Did you mean 'train-expert' or 'train-many'?"),
        ("recompsoe", "Did you mean 'recompose'?"),
        ("sign", "All commands: 'redhost --help'."),
    ):
        code, _, err = call(typed)
        assert code == 2 and f"unknown command {typed!r}. {hint}\n" in err


def test_an_unknown_study_and_an_absent_lab_are_one_line(call, monkeypatch) -> None:
    code, _, err = call("lab", "nosuch")
    assert (code, err.count("\n")) == (2, 1) and "All commands: 'redhost lab --help'." in err
    monkeypatch.setattr(PluginGroup, "_installed", lambda self, ctx: {})
    code, _, err = call("lab", "results")
    assert (code, err.count("\n")) == (2, 1) and "It is part of red-lab: 'pip install" in err


def test_a_list_of_commands_cuts_no_sentence_short(call, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in call("--help")[1].partition("Commands:")[2]


@pytest.mark.parametrize("extra", PLUGINS)
def test_a_command_whose_plugin_is_absent_says_what_to_install(call, monkeypatch, extra) -> None:
    monkeypatch.setattr("redhost.registry.package.discover.plugin_entry_points", lambda group: ())
    for name in PLUGINS[extra]:
        line = f"command {name!r} is part of redhost-{extra}. {how_to_install(extra)}"
        assert call(name, "anything", "--option") == (3, "", f"redhost: {line}\n")


def project(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_table_of_commands_and_the_extras_are_those_of_the_plugins() -> None:
    host, declared = project(ROOT), {}
    for folder in (ROOT / "plugins").glob("redhost-*"):
        plugin = project(folder)
        if points := plugin.get("entry-points"):
            extra = plugin["name"].removeprefix("redhost-")
            declared[extra] = sorted(points.get("redhost.commands", ()))
            assert f"redhost-{extra}=={host['version']}" in host["optional-dependencies"][extra]
            assert plugin["version"] == host["version"]
    assert declared == {extra: [*commands] for extra, commands in PLUGINS.items()}
    assert {*PLUGIN_TASKS.values()} <= declared.keys()
    assert host["optional-dependencies"]["all"] == [f"redhost[{','.join(sorted(declared))}]"]


@pytest.mark.parametrize("option", [("--workers", "2"), ("--engine", "ray")])
@pytest.mark.parametrize("command", ["check", "evaluate", "recompose"])
def test_workers_without_their_plugin_say_what_to_install(call, monkeypatch, command, option):
    points = tuple(p for p in plugin_entry_points("redhost.commands") if p.dist != "redhost-ray")
    name = "redhost.registry.package.discover.plugin_entry_points"
    monkeypatch.setattr(name, lambda group: points)
    line = f"an engine with workers is part of redhost-ray. {how_to_install('ray')}"
    assert call(command, *option) == (3, "", f"redhost: {line}\n")


@pytest.mark.parametrize(
    "option",
    [("--mixtures",), ("--plot", "x.svg"), ("--curves", "x.svg"), ("--labels",), ("--routing",)],
    ids=lambda o: o[0],
)
def test_more_of_evaluate_without_its_plugin_says_what_to_install(home, call, monkeypatch, option):
    monkeypatch.setattr("redhost.registry.package.discover.plugin_entry_points", lambda group: ())
    code, out, err = call("evaluate", *option)
    what = "evaluate with --outside, --mixtures, --plot, --curves, --labels or --routing"
    line = f"{what} is part of redhost-report. {how_to_install('report')}"
    assert (code, out, err) == (3, "", f"redhost: {line}\n")


def test_a_plugins_commands_are_listed_as_they_describe_themselves() -> None:
    found = {
        (e.dist.name.removeprefix("redhost-"), e.name): e.load().get_short_help_str(200)
        for e in entry_points(group="redhost.commands")
        if e.dist is not None and e.dist.name != "red-lab"
    }
    listed = {(x, name): line for x, lines in PLUGINS.items() for name, line in lines.items()}
    assert listed == found


def test_what_a_command_needs_is_taken_from_its_plugin_and_from_no_other(environment) -> None:
    files = {"__init__.py": "", "evaluation.py": "raise SystemExit('imported')"}
    environment.install_code("thief", files, {"redhost.commands": "someones = thief:hello"})
    points = [e for e in plugin_entry_points("redhost.commands") if e.name == "someones"]
    assert [e.dist for e in points] == ["thief"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PLUGINS, "others", {"someones": ""})
        with pytest.raises(MissingError, match="redhost-others"):
            import_beside("someones", "thief.evaluation:Extras", needed_for="evaluate --plot")


def test_thousands_of_commands_of_one_package_take_no_time(environment, call) -> None:
    many = "\n".join(f"c{n} = shouter:hello" for n in range(20_000))
    install(environment, HELLO, many)
    started = time.process_time()
    assert call("--help")[0] == 0
    assert time.process_time() - started < 2
