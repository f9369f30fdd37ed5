"""Commands of other packages: never imported to be listed, and never in the way."""

from __future__ import annotations

import pytest

HELLO = "import click\n\n@click.command()\ndef hello():\n    click.echo('hello')\n"


def install(environment, code: str, entry: str = "shout = shouter:hello") -> None:
    environment.install_code("shouter", {"__init__.py": code}, {"redhost.commands": entry})


@pytest.mark.parametrize("code", ["raise SystemExit(0)", "1 / 0", "this is no Python", "x = 1"])
def test_a_command_that_cannot_be_loaded_is_one_line_and_exit_1(environment, call, code) -> None:
    install(environment, code)
    exit_code, out, err = call("shout")
    assert exit_code == 1 and out == ""
    assert err.startswith("redhost: command 'shout' of shouter") and err.count("\n") == 1


def test_what_is_no_command_is_named(environment, call) -> None:
    install(environment, "hello = 3")
    assert "expected a click command, found int" in call("shout")[2]


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


def test_a_list_of_commands_cuts_no_sentence_short(call, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in call("--help")[1].partition("Commands:")[2]
