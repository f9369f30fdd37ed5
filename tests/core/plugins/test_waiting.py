"""Plugins of this project wait until one of their parts is asked for by name."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from msgspec.structs import replace

import redhost
from redhost.core.plugins.hooks import OF_THIS_PROJECT
from redhost.core.plugins.manager import REGISTER_TASKS
from redhost.registry.errors import PluginError
from redhost.registry.package.discover import plugin_entry_points
from redhost.registry.package.forms import TASKS

WAITING = {f"redhost-{extra}" for names in OF_THIS_PROJECT.values() for extra in names.values()}
CASES = {
    "": [],
    "plugins.task('classification')": [],
    "plugins.providers('redhost_register_routers', 'evidence')": [],
    "plugins.task('spans')": ["redhost_spans"],
    "plugins.providers('redhost_register_forms', 'lora')": ["redhost_peft"],
    "plugins.providers('redhost_register_recipes', 'open')": ["redhost_words"],
    "plugins.names('redhost_register_routers')": [
        "redhost_generate",
        "redhost_robust",
        "redhost_words",
    ],
    "plugins.providers('redhost_register_routers', 'blend')": ["redhost_robust"],
}
IMPORTED = """
import os, sys
from redhost.core.plugins.manager import Plugins

for statement in sys.argv[1:]:
    if os.fork():
        assert os.wait()[1] == 0, statement
        continue
    plugins = Plugins()
    exec(statement)
    names = {name.partition(".")[0] for name in sys.modules}
    print(*sorted(name for name in names if name.startswith("redhost_")), flush=True)
    os._exit(0)
"""


@pytest.fixture(scope="module")
def imported() -> dict[str, list[str]]:
    """The plugins of this project that a process imports for each statement, a process each."""
    command = [sys.executable, "-c", IMPORTED, *CASES]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    return {statement: line.split() for statement, line in zip(CASES, lines, strict=True)}


@pytest.mark.parametrize("statement", CASES)
def test_a_plugin_of_this_project_is_imported_once_a_part_of_it_is_named(
    statement, imported
) -> None:
    assert imported[statement] == CASES[statement]


def test_the_tables_name_every_part_that_plugins_of_this_project_register() -> None:
    plugins = redhost.plugins.Plugins()
    states = {s.dist: s.state for s in plugins.states}
    assert {dist: states[dist] for dist in WAITING} == dict.fromkeys(WAITING, "loaded")
    for hook, names in OF_THIS_PROJECT.items():
        if hook == REGISTER_TASKS:
            continue
        registered = {
            name: dist.removeprefix("redhost-")
            for name in plugins.names(hook)
            for dist in plugins.providers(hook, name)
            if dist in WAITING
        }
        assert registered == names


@pytest.mark.parametrize(("name", "extra"), OF_THIS_PROJECT[REGISTER_TASKS].items())
def test_the_table_of_tasks_names_their_plugins(name, extra) -> None:
    providers = dict[str, str]()
    spec = TASKS[name]
    redhost.plugins.Plugins().task(name, providers=providers)
    assert list(providers) == [f"redhost-{extra}"] and TASKS[name] == spec


def test_what_waits_is_loaded_once_by_many_threads() -> None:
    entries = plugin_entry_points("redhost.plugins")
    plugins = redhost.plugins.Plugins(entries)
    threads = [threading.Thread(target=plugins.task, args=("spans",)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(s.dist == "redhost-spans" for s in plugins.states) == 1
    assert len(plugins.states) == len(entries)


def test_one_that_cannot_be_imported_fails_by_name_when_it_is_used() -> None:
    [peft] = (e for e in plugin_entry_points("redhost.plugins") if e.dist == "redhost-peft")
    plugins = redhost.plugins.Plugins([replace(peft, value="redhost_peft.gone")])
    assert "lora" not in plugins.names("redhost_register_forms")
    with pytest.raises(PluginError, match="redhost-peft cannot be loaded"):
        plugins.make("redhost_register_forms", "lora", redhost.Expert, what="a form")


def test_plugins_of_a_composition_are_loaded_to_be_compared() -> None:
    digest = dict[str, str]()
    redhost.plugins.Plugins().task("spans", providers=digest)
    assert redhost.plugins.Plugins().only(digest).task("spans").name == "spans"
    with pytest.raises(PluginError, match="made a part of this composition"):
        redhost.plugins.Plugins().only({"redhost-spans": "0" * 64})
