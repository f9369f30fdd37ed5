"""What is loaded, and when: names of the package, and experts under a router of the plugin."""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import redhost_robust

import redhost
from redhost.core.model.lazy import LazyExpert
from redhost.core.plugins.manager import Plugins

COUNT = 9
TEXT = "hello there"


def test_a_host_that_registers_the_kinds_imports_nothing_else() -> None:
    code = (
        "import redhost_robust.hooks, sys\n"
        "redhost_robust.hooks.redhost_register_routers(lambda name, value: None)\n"
        "print(*sorted(m for m in sys.modules if m.startswith('redhost_robust')))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["redhost_robust", "redhost_robust.hooks"]


def test_no_module_masks_a_public_name() -> None:
    for module in pkgutil.walk_packages(redhost_robust.__path__, "redhost_robust."):
        importlib.import_module(module.name)
    for name in redhost_robust.__all__:
        assert not isinstance(getattr(redhost_robust, name), ModuleType)


@pytest.fixture
def home(redhost_fake_expert, tmp_path: Path) -> Path:
    """A home of nine experts under a router of the plugin that picks one."""
    for n in range(COUNT):
        redhost_fake_expert(f"team{n}", labels=(f"a{n}", f"b{n}"), seed=n)
    open_host(tmp_path).recompose(router="shortlist:k=1,m=2", accept=True)
    return tmp_path


def open_host(folder: Path) -> redhost.Host:
    return redhost.Host.open(folder / "home", backbone="tiny-random")


def waiting(host: redhost.Host) -> list[bool]:
    """Return for each expert whether it is still in the store, once a text was answered."""
    host.predict([TEXT])
    model = host._model
    assert model is not None
    return [isinstance(e, LazyExpert) and not e.is_loaded for e in model.bus.parts()]


def test_experts_of_redhosts_forms_wait_under_a_router_of_a_plugin(home: Path) -> None:
    host = open_host(home)
    assert host.generations.load(1).providers.keys() == {"redhost-robust"}
    still = waiting(host)
    assert len(still) == COUNT and COUNT - 3 <= sum(still) < COUNT
    assert host.predict([TEXT]) == open_host(home).composed.answer([TEXT])


def test_experts_of_a_form_that_a_plugin_makes_do_not_wait(home: Path, monkeypatch) -> None:
    """Control: a plugin that replaces a form of redhost's."""
    plain = Plugins.providers

    def providers(plugins: Plugins, hook: str, name: str) -> dict[str, str]:
        replaced = hook == "redhost_register_forms"
        return {"someones": "0"} if replaced else plain(plugins, hook, name)

    monkeypatch.setattr(Plugins, "providers", providers)
    assert waiting(open_host(home)) == [False] * COUNT
