"""What a plugin's factory makes is an instance of its part's class, or the plugin is named."""

from __future__ import annotations

from pathlib import Path

import pytest

import redhost
from redhost.registry.environment import trust
from redhost.registry.errors import PluginError

CODE = """
import redhost

@redhost.hookimpl
def redhost_register_{hook}(register):
    register("{name}", lambda: {{}})
"""


@pytest.mark.parametrize(
    ("hook", "name", "part", "expected"),
    [
        ("backbones", "carried", "backbone 'toy'", "Backbone"),
        ("norms", "layernorm", "the bus norm", "Module"),
        ("routers", "even", "a router of kind 'even'", "Module"),
        ("forms", "residual", "the form 'residual' of expert 'blue'", "Expert"),
        ("combiners", "residual", "the combiner", "Module"),
    ],
)
def test_a_factory_that_makes_something_else_is_named(
    installed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hook, name, part, expected
) -> None:
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))
    files = {"__init__.py": CODE.format(hook=hook, name=name)}
    installed.install_code("taker", files, {"redhost.plugins": "taker = taker"})
    trust.trust("taker")
    line = rf"plugin 'taker' made {part}: expected an instance of {expected}, found dict"
    with pytest.raises((PluginError, redhost.MissingError), match=line):
        redhost.Host.open(tmp_path / "home", backbone="toy").recompose(
            router="even" if hook == "routers" else "linear"
        )
