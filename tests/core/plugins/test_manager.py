"""Code that enters the host: third-party packages replace each part of the bus, or fail safely."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
import redhost_author
import redhost_ray.jobs
import torch
from redhost_author.project import ExpertPlan, package_in

import redhost
from redhost.cli import main
from redhost.core.plugins.manager import PluginState
from redhost.registry.environment import trust
from redhost.registry.environment.extras import how_to_install
from redhost.registry.errors import HarmError, PluginError, UsageError

ROUTER = """
import redhost

class Even(redhost.Router):
    kind = "even"
    closed_form = True
    def forward(self, z, signals=None):
        return z.new_zeros(len(z), len(self.columns))
    def solve(self, columns, *, only=None):
        pass

def make(bus, columns, seed):
    return Even(width=bus.width, columns=columns, seed=seed)

@redhost.hookimpl
def redhost_register_routers(register):
    register("even", make)
"""

NORM = """
import redhost, torch

class Doubled(torch.nn.Module):
    def forward(self, h):
        return 2 * torch.nn.functional.layer_norm(h, h.shape[-1:])

@redhost.hookimpl
def redhost_register_norms(register):
    register("layernorm", Doubled)
"""

BACKBONE = """
import redhost

def make(manifest, files, device):
    made = redhost.Backbone.from_package(manifest, files, device=device)
    object.__setattr__(made, "name", "made elsewhere")
    return made

@redhost.hookimpl
def redhost_register_backbones(register):
    register("carried", make)
"""

EXPERT = """
import redhost, torch

class Shift(redhost.Expert):
    def __init__(self, by):
        super().__init__(space="hidden", labels=("a", "b"))
        self.by = torch.nn.Parameter(by)
    def forward(self, z):
        return self.by.expand(len(z), -1)

def make(tensors):
    return Shift(tensors["by"])

@redhost.hookimpl
def redhost_register_forms(register):
    register("shifter:shift", make)
"""

COMBINER = """
import redhost

class Loudest(redhost.plugins.Combiner):
    def forward(self, base, alpha, delta):
        first = alpha.argmax(-1)
        return base + delta[range(len(base)), first]

@redhost.hookimpl
def redhost_register_combiners(register):
    register("residual", Loudest)
"""

RECIPE = (
    EXPERT
    + """
import dataclasses, hashlib
import safetensors.torch
from redhost_author.training.expert import TrainedExpert
from redhost_author.training.packaging import FormDraft
from redhost_author.training.recipe import Recipe
from redhost.registry.package.manifest import FileRef

class ShiftRecipe(Recipe):
    def _train_on_bus(self, checkpoint, progress):
        by = torch.full((1, self.backbone.width), 0.01)
        made = Shift(by).requires_grad_(False)
        return TrainedExpert(expert=made, epoch=0, loss=None)
    def draft(self, trained):
        data = safetensors.torch.save({"by": trained.expert.by.detach()})
        file = FileRef(file="by.safetensors", sha256=hashlib.sha256(data).hexdigest())
        fields = {"form": "shifter:shift", "rank": 0, "activation": "identity", "weights": file}
        form = FormDraft(files={file.file: data}, fields=fields)
        return dataclasses.replace(super().draft(trained), form=form)

@redhost.hookimpl
def redhost_register_recipes(register):
    register("shifter:shift", lambda: ShiftRecipe)
"""
)

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


def state_of(dist: str) -> PluginState:
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


def test_a_package_brings_its_own_combiner(toy, tmp_path) -> None:
    plain = host(tmp_path)
    plain.recompose()
    install_plugin(toy, "loudest", COMBINER)
    opened = redhost.Host.open(tmp_path / "other", backbone="toy")
    opened.recompose()
    assert set(opened.generations.load(1).providers) == {"loudest"}
    bus, summed = opened.composed.bus, plain.composed.bus
    h = opened.composed.backbone.encode(["red 1", "green 2"])
    z = bus.norm(h)
    alpha = torch.full((2, len(bus.columns)), 0.1)
    alpha[:, 0] = 0.6
    torch.testing.assert_close(bus.residual(h, z, alpha), h + summed.delta(z, 0))


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


def test_a_package_trains_its_own_expert_form(toy, tmp_path, backbone_folder, texts_of) -> None:
    plan = ExpertPlan(id="moved", form="shifter:shift", writes="hidden")
    rows = [redhost.Row(text=t, label=y) for t, y in texts_of("red", 40)]
    project = tmp_path / "red-expert-moved"
    redhost_author.write_project(project, kind="expert", package_id="moved", summary="moved")

    def train() -> None:
        redhost_author.train_package(
            project,
            plan,
            redhost_author.split_rows(rows),
            context=redhost_author.open_for_training(backbone_folder),
            settings=redhost_author.ExpertSettings(),
        )

    with pytest.raises(PluginError, match="provides the training of the form 'shifter:shift'"):
        train()
    install_plugin(toy, "shifter", RECIPE)
    with suppress(HarmError):  # what it wrote is there to look at
        train()
    made = json.loads((package_in(project) / "expert.json").read_text())
    assert (made["form"], made["weights"]["file"]) == ("shifter:shift", "by.safetensors")
    toy.install(project)
    opened = host(tmp_path).recompose(accept=True)
    assert "moved" in opened.experts


def test_two_providers_of_one_kind_are_an_error_that_names_both(toy, tmp_path) -> None:
    install_plugin(toy, "evener", ROUTER)
    install_plugin(toy, "levener", ROUTER)
    with pytest.raises(PluginError, match="evener and levener"):
        host(tmp_path).recompose(router="even")
    host(tmp_path).recompose(router="linear", accept=True)  # not their kind: no conflict


def test_nobody_provides_a_kind(toy, tmp_path) -> None:
    with pytest.raises(UsageError, match="no trusted plugin provides a router of kind 'evne'") as e:
        host(tmp_path).recompose(router="evne")
    assert e.value.hint.startswith("Known, for --router: ") and e.value.hint.endswith(
        "topk, words."
    )


def test_a_router_whose_weights_are_no_numbers_is_named_and_no_expert_blamed(toy, tmp_path) -> None:
    nan = "z.new_full((len(z), len(self.columns)), float('nan'))"
    install_plugin(toy, "evener", ROUTER.replace("z.new_zeros(len(z), len(self.columns))", nan))
    with pytest.raises(PluginError, match="router 'even' of 'evener' gives NaN or infinite"):
        host(tmp_path).recompose(router="even")


def test_an_untrusted_plugin_is_not_imported(toy, tmp_path) -> None:
    install_plugin(toy, "sneaky", "raise SystemExit('imported')", trusted=False)
    assert state_of("sneaky").state == "untrusted"
    assert state_of("sneaky").hint == "Run 'redhost trust sneaky'."
    host(tmp_path).recompose()


def test_a_plugin_of_this_project_of_another_version_is_to_be_installed_again(toy) -> None:
    install_plugin(toy, "redhost-peft", "raise SystemExit('imported')", trusted=False)
    assert (state_of("redhost-peft").version, state_of("redhost-peft").state) == (
        "1.0",
        "untrusted",
    )
    assert state_of("redhost-peft").hint == how_to_install("peft")
    with pytest.raises(PluginError, match=re.escape(how_to_install("peft"))):
        redhost.plugins.Plugins().make(
            "redhost_register_forms", "lora", redhost.Expert, what="a form"
        )


def test_trust_ends_when_the_code_changes(toy) -> None:
    install_plugin(toy, "evener", ROUTER)
    assert state_of("evener").state == "loaded"
    (toy.package("evener") / "__init__.py").write_text(ROUTER + "\n# changed\n")
    assert state_of("evener").state == "untrusted"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('broken on import')", "RuntimeError: broken on import"),
        (ROUTER.replace("register_routers", "register_ruoters"), "redhost_register_ruoters"),
        (ROUTER.replace("(register)", "(regsiter)"), "regsiter"),
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


MUTE = """
class MuteError(Exception):
    def __str__(self):
        raise ValueError
    __repr__ = __str__

"""


def test_an_error_that_cannot_be_printed_is_a_state_too(toy) -> None:
    install_plugin(toy, "mute", f"{MUTE}raise MuteError")
    assert "MuteError" in (state_of("mute").reason or "")
    install_plugin(toy, "muted", MUTE + ROUTER.replace("return Even", "raise MuteError  #"))
    with pytest.raises(PluginError, match=r"'muted' raised in .*MuteError"):
        redhost.plugins.Plugins().make(
            "redhost_register_routers", "even", object, what="it", bus=None, columns=(), seed=0
        )


def test_a_syntax_error_is_one_line_that_says_where(toy) -> None:
    install_plugin(toy, "broken", "x = 1\nthis is no Python")
    reason = state_of("broken").reason or ""
    assert "__init__.py" in reason and "line 2" in reason and "\n" not in reason


@pytest.mark.parametrize("names", ["(None,)", "('even', 'even')", "(['even'],)"])
def test_what_a_plugin_registers_under_no_name_of_its_own_is_refused(toy, names) -> None:
    loop = f"for name in {names}:\n        register(name, make)"
    install_plugin(toy, "evener", ROUTER.replace('register("even", make)', loop))
    with pytest.raises(PluginError, match=r"'evener' registers .*expected another name each time"):
        redhost.plugins.Plugins().names("redhost_register_routers")


def test_what_a_plugin_prints_when_it_is_imported_is_no_output(toy, capsys) -> None:
    install_plugin(toy, "talker", f"print('loading')\n{ROUTER}")
    assert state_of("talker").state == "loaded"
    out, err = capsys.readouterr()
    assert (out, err) == ("", "loading\n")


def test_no_name_of_a_distribution_is_that_of_redhosts_parts(toy, tmp_path) -> None:
    for dist in ("redhost-builtin", "redhost-itself"):
        install_plugin(toy, dist, NOTED)
        assert state_of(dist).state == "loaded"
    assert "linear" in redhost.plugins.Plugins().names("redhost_register_routers")


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
    with pytest.raises(
        PluginError, match="plugin 'raiser' raised in the factory of a router of kind 'even'"
    ):
        host(tmp_path).recompose(router="even")


@pytest.mark.parametrize("end", ["raise SystemExit(0)", "raise GeneratorExit", "raise Panic"])
def test_a_hook_that_would_end_the_program_is_named(toy, tmp_path, end) -> None:
    code = f"class Panic(BaseException):\n    pass\n{ROUTER}".replace("return Even", f"{end}  #")
    install_plugin(toy, "ender", code)
    with pytest.raises(PluginError, match="router of kind 'even' of plugin 'ender'"):
        host(tmp_path).recompose(router="even")
    toy.uninstall("ender")
    broken = NOTED.replace("pathlib.Path(", "raise SystemExit(0)  # (", 1)
    install_plugin(toy, "noter", broken)
    host(tmp_path).recompose(router="linear", accept=True)  # it is published, and that is logged


def test_an_import_that_would_end_the_program_is_a_state(toy) -> None:
    install_plugin(toy, "panics", "class Panic(BaseException):\n    pass\nraise Panic('of Rust')")
    assert state_of("panics").state == "failed"
    assert "the import of plugin 'panics'" in (state_of("panics").reason or "")


WAITS = """
import redhost, signal, os

def wait():
    os.kill(os.getpid(), signal.SIGINT)  # as if somebody typed Ctrl-C
    signal.sigtimedwait([], 60)

{where}
"""
HANGING = {
    "redhost_register_norms of plugin 'hanging'": (
        "@redhost.hookimpl\ndef redhost_register_norms(register):\n    wait()\n"
    ),
    "the factory of the bus norm of plugin 'hanging'": (
        "@redhost.hookimpl\ndef redhost_register_norms(register):\n"
        "    register('layernorm', wait)\n"
    ),
    "the import of plugin 'hanging'": "wait()\n",
}


@pytest.mark.parametrize("doing", HANGING)
def test_ctrl_c_names_the_plugin_that_hangs(toy, tmp_path, doing, capsys, monkeypatch) -> None:
    monkeypatch.setenv("REDHOST_HOME", str(tmp_path / "home"))
    install_plugin(toy, "hanging", WAITS.format(where=HANGING[doing]))
    with pytest.raises(SystemExit) as e:
        main(["recompose", "--backbone", "toy"])
    assert e.value.code == 130
    assert f"redhost: stopped in {doing}; no generation is half" in capsys.readouterr().err


LEAVES = ROUTER.replace("return z.new_zeros", "raise SystemExit(0)\n        return z.new_zeros")


def test_a_made_part_that_ends_the_command_is_named(toy, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("REDHOST_HOME", str(tmp_path / "home"))
    install_plugin(toy, "leaver", LEAVES)
    with pytest.raises(SystemExit) as e:
        main(["recompose", "--backbone", "toy", "--router", "even"])
    assert e.value.code == 1
    assert capsys.readouterr().err.endswith("redhost: leaver ended the command: sys.exit(0)\n")


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
    tried = ROUTER + NORM + BACKBONE + RECIPE + COMBINER + NOTED + REGISTERING + TAKING
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
    assert set(plugins.collect("redhost_register_engines")) == {"far", "ray"}  # redhost-ray's
    assert redhost_ray.jobs.choose_pool(plugins, engine="local", workers=1).name == "local"
    install_plugin(toy, "two", REGISTERING)
    with pytest.raises(PluginError, match="one and two"):
        redhost.plugins.Plugins().collect("redhost_register_engines")


TAKING = """
import redhost.plugins

@redhost.hookimpl
def redhost_register_tasks(register):
    register("multi-label", type(redhost.plugins.make_task("classification").head))
"""


def test_a_plugin_that_registers_a_task_of_redhosts_has_failed(toy) -> None:
    install_plugin(toy, "one", TAKING)
    state = {s.dist: s for s in redhost.plugins.Plugins().states}["one"]
    assert state.state == "failed" and "registered already" in str(state.reason)
