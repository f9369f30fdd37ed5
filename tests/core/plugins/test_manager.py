"""Code that enters the host: third-party packages replace each part of the bus, or fail safely."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import redhost
from redhost.registry.environment import trust
from redhost.registry.errors import PluginError

ROUTER = """
import redhost

class Even(redhost.Router):
    kind = "even"
    closed_form = True
    def forward(self, z, signals=None):
        return z.new_zeros(len(z), len(self.columns))
    def solve(self, columns, *, only=None):
        pass

@redhost.hookimpl
def redhost_make_router(kind, bus, columns, seed):
    return Even(width=bus.width, columns=columns, seed=seed) if kind == "even" else None
"""

NORM = """
import redhost, torch

class Doubled(torch.nn.Module):
    def forward(self, h):
        return 2 * torch.nn.functional.layer_norm(h, h.shape[-1:])

@redhost.hookimpl
def redhost_make_norm(bus):
    return Doubled()
"""

BACKBONE = """
import redhost

@redhost.hookimpl
def redhost_make_backbone(manifest, files, device):
    made = redhost.Backbone.from_package(manifest, files, device=device)
    object.__setattr__(made, "name", "made elsewhere")
    return made
"""

EXPERT = """
import redhost, torch

class Shift(redhost.Expert):
    def __init__(self, by):
        super().__init__(space="hidden", labels=("a", "b"))
        self.by = torch.nn.Parameter(by)
    def forward(self, z):
        return self.by.expand(len(z), -1)

@redhost.hookimpl
def redhost_make_expert(manifest, tensors, bus):
    return Shift(tensors["by"]) if manifest.form == "shifter:shift" else None
"""

NOTED = """
import pathlib, redhost

@redhost.hookimpl
def redhost_composed(receipt):
    pathlib.Path(__file__).with_name("noted").write_text(str(receipt.generation))
"""


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDHOST_CONFIG", str(tmp_path / "config"))


@pytest.fixture
def toy(installed):
    return installed


def install_plugin(environment, dist: str, code: str, *, trusted: bool = True) -> None:
    module = dist.replace("-", "_")
    environment.install_code(dist, {"__init__.py": code}, {"redhost.plugins": f"{dist} = {module}"})
    if trusted:
        trust.trust(dist)


def state_of(dist: str) -> redhost.plugins.PluginState:
    return next(s for s in redhost.plugins.Plugins().states if s.dist == dist)


def host(tmp_path: Path) -> redhost.Host:
    return redhost.Host.open(tmp_path / "home", backbone="toy")


def test_a_package_brings_its_own_router_kind(toy, tmp_path) -> None:
    install_plugin(toy, "evener", ROUTER)
    opened = host(tmp_path)
    opened.recompose(router="even", accept=True)
    assert set(opened.predict(["red 1"])[0].weights.values()) == {0.25}
    record = opened.generations.load(1)
    assert record.router.kind == "even"
    assert record.providers == {"evener": trust.digest_of("evener")}


def test_a_package_brings_its_own_norm(toy, tmp_path, backbone) -> None:
    plain = host(tmp_path)
    plain.recompose()
    install_plugin(toy, "doubler", NORM)
    opened = redhost.Host.open(tmp_path / "other", backbone="toy")
    opened.recompose()
    h = backbone.encode(["red 1"])
    assert (opened.composed.bus.norm(h) == 2 * plain.composed.bus.norm(h)).all()


def test_a_package_brings_its_own_backbone(toy, tmp_path) -> None:
    install_plugin(toy, "maker", BACKBONE)
    opened = host(tmp_path)
    opened.recompose()
    assert opened.composed.backbone.name == "made elsewhere"


def test_a_package_brings_its_own_expert_form(toy, tmp_path, build_expert) -> None:
    import hashlib

    import numpy as np
    import safetensors.numpy

    folder = build_expert(tmp_path / "shift", "red", expert_id="shifted")
    manifest = json.loads((folder / "expert.json").read_text())
    by = np.ones((1, 16), dtype="float32")
    files = {
        "expert.safetensors": safetensors.numpy.save({"by": by}),
        "canary.safetensors": safetensors.numpy.save(
            {"z": np.ones((2, 16), "float32"), "delta": np.ones((2, 16), "float32")}
        ),
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
        manifest[{"expert": "weights"}.get(name.split(".")[0], "canary")]["sha256"] = (
            hashlib.sha256(data).hexdigest()
        )
    (folder / "expert.json").write_text(json.dumps({**manifest, "form": "shifter:shift"}))
    toy.install(folder.parents[1])
    opened = host(tmp_path)
    assert ("shifted", "form_unknown") in {
        (x.id, x.code) for x in opened.recompose(accept=True).left_out
    }
    install_plugin(toy, "shifter", EXPERT)
    assert "shifted" in host(tmp_path).recompose(accept=True).experts


def test_an_expert_that_is_none_is_named(toy, tmp_path) -> None:
    install_plugin(
        toy,
        "taker",
        EXPERT.replace('manifest.form == "shifter:shift"', "True").replace(
            'Shift(tensors["by"])', "torch.nn.Identity()"
        ),
    )
    with pytest.raises(redhost.MissingError, match=r"expected a redhost\.Expert, found Identity"):
        host(tmp_path).recompose()


def test_two_providers_of_one_kind_are_an_error_that_names_both(toy, tmp_path) -> None:
    install_plugin(toy, "evener", ROUTER)
    install_plugin(toy, "levener", ROUTER)
    with pytest.raises(PluginError, match="evener and levener"):
        host(tmp_path).recompose(router="even")
    host(tmp_path).recompose(router="linear", accept=True)  # not their kind: no conflict


def test_nobody_provides_a_kind(toy, tmp_path) -> None:
    with pytest.raises(PluginError, match="no trusted plugin provides a router of kind 'evne'"):
        host(tmp_path).recompose(router="evne")


def test_an_untrusted_plugin_is_not_imported(toy, tmp_path) -> None:
    install_plugin(toy, "sneaky", "raise SystemExit('imported')", trusted=False)
    assert state_of("sneaky").state == "untrusted"
    assert state_of("sneaky").hint == "Run 'redhost trust sneaky'."
    host(tmp_path).recompose()


def test_trust_ends_when_the_code_changes(toy) -> None:
    install_plugin(toy, "evener", ROUTER)
    assert state_of("evener").state == "loaded"
    (toy.package("evener") / "__init__.py").write_text(ROUTER + "\n# changed\n")
    assert state_of("evener").state == "untrusted"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('broken on import')", "RuntimeError: broken on import"),
        (ROUTER.replace("make_router", "make_ruoter"), "redhost_make_ruoter"),
        (ROUTER.replace("columns, seed", "columns, sede"), "sede"),
        ("raise SystemExit(0)", "SystemExit: 0"),
        ("this is no Python", "SyntaxError"),
    ],
)
def test_a_broken_plugin_is_a_state_and_not_a_crash(toy, tmp_path, code, reason) -> None:
    install_plugin(toy, "broken", code)
    install_plugin(toy, "evener", ROUTER)
    assert state_of("broken").state == "failed"
    assert reason in (state_of("broken").reason or "")
    assert state_of("evener").state == "loaded"
    host(tmp_path).recompose(router="even", accept=True)


def test_a_plugin_whose_files_cannot_be_reported_any_more_is_a_state(toy) -> None:
    install_plugin(toy, "evener", ROUTER)
    (toy.folder / "evener-1.0.dist-info" / "RECORD").write_text("../../etc/passwd,,\n")
    state = state_of("evener")
    assert state.state == "failed" and "files inside the site folder" in (state.reason or "")
    assert "pip uninstall evener" in (state.hint or "")


def test_one_distribution_may_bring_several_plugins(toy, tmp_path) -> None:
    files = {"__init__.py": "", "router.py": ROUTER, "norm.py": NORM}
    entries = {"redhost.plugins": "a = many.router\nb = many.norm"}
    toy.install_code("many", files, entries)
    trust.trust("many")
    states = [(s.name, s.state) for s in redhost.plugins.Plugins().states if s.dist == "many"]
    assert states == [("a", "loaded"), ("b", "loaded")]
    host(tmp_path).recompose(router="even", accept=True)
    assert set(host(tmp_path).generations.load(1).providers) == {"many"}


def test_one_broken_plugin_of_a_distribution_leaves_its_other_one_alone(toy, tmp_path) -> None:
    files = {"__init__.py": "", "router.py": ROUTER, "broken.py": "1 / 0"}
    entries = {"redhost.plugins": "a = many.router\nb = many.broken"}
    toy.install_code("many", files, entries)
    trust.trust("many")
    states = [(s.name, s.state) for s in redhost.plugins.Plugins().states if s.dist == "many"]
    assert states == [("a", "loaded"), ("b", "failed")]
    host(tmp_path).recompose(router="even", accept=True)


TEXTS = ["red 61 b", "green 62 c", "nothing 4"]


def answers(tmp_path: Path) -> list[tuple[str, float | None]]:
    return [(a.label, a.probability) for a in host(tmp_path).predict(TEXTS)]


@pytest.mark.parametrize(
    "late", [NORM, BACKBONE, ROUTER.replace("return Even", "return 1 / 0, Even")]
)
def test_a_plugin_that_came_later_does_not_change_what_is_composed(toy, tmp_path, late) -> None:
    host(tmp_path).recompose()
    before = answers(tmp_path)
    install_plugin(toy, "late", late)
    assert state_of("late").state == "loaded"
    assert answers(tmp_path) == before
    host(tmp_path).evaluate(leave_out=True)


@pytest.mark.parametrize("change", ["uninstalled", "untrusted", "another version"])
def test_without_the_plugin_that_made_a_part_nothing_else_answers(toy, tmp_path, change) -> None:
    install_plugin(toy, "doubler", NORM)
    host(tmp_path).recompose()
    before = answers(tmp_path)
    source = toy.package("doubler") / "__init__.py"
    if change == "uninstalled":
        toy.uninstall("doubler")
    else:
        source.write_text(NORM.replace("2 *", "3 *"))
        if change == "another version":
            toy.seal("doubler")
            trust.trust("doubler")
    with pytest.raises(PluginError, match="plugin 'doubler' made a part of this composition"):
        answers(tmp_path)
    with pytest.raises(
        redhost.errors.HarmError, match=r"generation 1 cannot be loaded.*another --router"
    ):
        host(tmp_path).recompose()
    assert host(tmp_path).recompose(accept=True).generation == 2
    if change != "uninstalled":
        source.write_text(NORM)
        toy.seal("doubler")
        trust.trust("doubler")
        host(tmp_path).rollback(1)
        assert answers(tmp_path) == before


def test_locked_follows_a_lock_that_names_plugins(toy, tmp_path) -> None:
    install_plugin(toy, "evener", ROUTER)
    first = host(tmp_path).recompose(router="even")
    assert host(tmp_path).recompose(locked=True).router.digest == first.router.digest
    install_plugin(toy, "doubler", NORM)
    with pytest.raises(redhost.errors.CompositionError, match="doubler is new"):
        host(tmp_path).recompose(locked=True)


def test_a_hook_that_raises_is_named(toy, tmp_path) -> None:
    install_plugin(toy, "raiser", ROUTER.replace("return Even", "return 1 / 0, Even"))
    with pytest.raises(PluginError, match="plugin 'raiser' raised in redhost_make_router"):
        host(tmp_path).recompose(router="even")


def test_plugins_are_notified_of_a_published_generation(toy, tmp_path) -> None:
    install_plugin(toy, "noter", NOTED)
    install_plugin(toy, "raiser", NOTED.replace("pathlib.Path", "1 / 0, pathlib.Path"))
    host(tmp_path).recompose()
    assert (toy.package("noter") / "noted").read_text() == "1"


def test_pluggy_never_runs_inside_forward(toy, tmp_path) -> None:
    opened = host(tmp_path)
    opened.recompose()
    opened.composed  # noqa: B018  (load it)
    calls: list[str] = []
    opened.plugins.manager.add_hookcall_monitoring(
        lambda name, *_: calls.append(name), lambda *_: None
    )
    opened.predict(["red 1"])
    assert calls == []


def test_every_hook_has_a_docstring_and_is_tried_here() -> None:
    from redhost.core.plugins.hooks import HookSpec

    hooks = [n for n in vars(HookSpec) if n.startswith("redhost_")]
    tried = ROUTER + NORM + BACKBONE + EXPERT + NOTED + REGISTERING
    assert all(getattr(HookSpec, n).__doc__ for n in hooks)
    assert [n for n in hooks if n not in tried] == []


REGISTERING = """
import redhost

@redhost.hookimpl
def redhost_register_engines(register):
    register("far", object())
"""


def test_engines_are_registered_by_name(toy) -> None:
    install_plugin(toy, "one", REGISTERING)
    plugins = redhost.plugins.Plugins()
    assert set(plugins.collect("redhost_register_engines")) == {"far"}
    assert redhost.jobs.choose_pool(plugins, engine="local", workers=1).name == "local"
    install_plugin(toy, "two", REGISTERING)
    with pytest.raises(PluginError, match="one and two"):
        redhost.plugins.Plugins().collect("redhost_register_engines")
