"""Where the plugin is not installed: one line that says what to install."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import redhost_ray.jobs
from redhost_ray.sweep_command import DEFAULT

import redhost
from redhost.core.plugins import manager
from redhost.core.plugins.hooks import PLUGIN_ROUTERS
from redhost.errors import PluginError
from redhost.registry.environment.extras import how_to_install
from redhost.registry.errors import UsageError
from redhost.registry.package.discover import plugin_entry_points

RUN = how_to_install("robust")
KINDS = sorted(kind for kind, extra in PLUGIN_ROUTERS.items() if extra == "robust")
TEXT = "hello there"


@pytest.fixture
def home(redhost_fake_expert, tmp_path: Path) -> Path:
    for seed, name in enumerate(("east", "west")):
        redhost_fake_expert(name, labels=(f"{name}0", f"{name}1"), seed=seed)
    return tmp_path / "home"


@pytest.fixture
def uninstall(monkeypatch) -> Callable[[], None]:
    """Take redhost-robust away from the hosts that are opened from then on."""

    def others(group: str) -> list[manager.EntryPointInfo]:
        return [e for e in plugin_entry_points(group) if e.dist != "redhost-robust"]

    return lambda: monkeypatch.setattr(manager, "plugin_entry_points", others)


def open_host(home: Path) -> redhost.Host:
    return redhost.Host.open(home, backbone="tiny-random")


@pytest.mark.parametrize("kind", [*KINDS, "shortlist:k=1"])
def test_a_kind_without_its_plugin_names_the_extra(home, uninstall, kind) -> None:
    uninstall()
    with pytest.raises(PluginError) as e:
        open_host(home).recompose(router=kind, accept=True)
    assert str(e.value) == f"no trusted plugin provides a router of kind {kind!r}. {RUN}"


def test_a_kind_that_is_typed_wrongly_is_suggested(home, uninstall) -> None:
    uninstall()
    with pytest.raises(UsageError, match=r"Did you mean 'shortlist'\? Known, for --router: "):
        open_host(home).recompose(router="shortlits")


@pytest.mark.parametrize("kind", KINDS)
def test_a_generation_that_was_composed_with_it_names_the_extra(home, uninstall, kind) -> None:
    open_host(home).recompose(router=kind, accept=True)
    [answer] = open_host(home).predict([TEXT])
    uninstall()
    with pytest.raises(PluginError, match="plugin 'redhost-robust' made a part") as e:
        open_host(home).predict([TEXT])
    assert e.value.hint.startswith(f"{RUN}. Or compose anew, ")
    assert open_host(home).recompose(router="linear", accept=True).generation == 2
    assert open_host(home).predict([TEXT]) != [answer]


def test_a_sweep_names_the_extra_and_without_names_goes_on_without(home, uninstall) -> None:
    open_host(home).recompose()
    uninstall()
    rows = [redhost.Row(text=f"{n} {TEXT}", label="east0", domain="east") for n in range(4)]
    with pytest.raises(PluginError) as e:
        redhost_ray.jobs.sweep(open_host(home).session, routers=["shortlist"], rows=rows)
    assert e.value.hint == RUN


def test_a_sweep_without_names_tries_what_is_installed(home, uninstall, call, tmp_path) -> None:
    open_host(home).recompose()
    data = tmp_path / "rows.jsonl"
    domains = ("east", "west") * 4
    rows = [{"text": f"{d} {n}", "label": f"{d}0", "domain": d} for n, d in enumerate(domains)]
    data.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    arguments = ("sweep", "--home", str(home), "--data", str(data))
    code, out, err = call(*arguments)
    assert code == 0 and "shortlist" in DEFAULT and "shortlist" in out, err
    uninstall()
    code, out, err = call(*arguments)
    assert code == 0 and "shortlist" not in out and "quadratic" in out, err
