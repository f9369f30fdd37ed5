"""Experts that tap the trunk, from their project to a published generation and back."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import redhost_author
import torch
from redhost_author.project import ExpertPlan, write_plan
from redhost_author.training.data import split_rows
from redhost_author.training.expert import ExpertSettings
from redhost_author.training.recipes import train_package
from redhost_author.verifying import Verifier
from redhost_peft.inside import check_taps

import redhost
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.backbones.interventions.layout import inside_reader, with_layout
from redhost.core.bus.experts import InTrunkExpert
from redhost.core.bus.layout import FeatureLayout, WideNorm
from redhost.core.composition.options import RecomposeOptions
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.evaluate import evaluate
from redhost.core.plugins import manager
from redhost.registry.environment.extras import how_to_install
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import read_expert

SETTINGS = ExpertSettings(
    space="hidden", rank=8, epochs=30, learning_rate=1e-2, dropout=0.0, weight_decay=0.0
)


@pytest.fixture(scope="module")
def make(backbone_folder, texts_of, tmp_path_factory):
    """Train and write an expert that taps, as `redhost train-expert` does; return its folder."""

    def build(name: str, *, project: Path | None = None, **where: str) -> Path:
        torch.set_num_threads(1)
        project = project or tmp_path_factory.mktemp("tapping") / f"red-expert-{name}"
        folder = redhost_author.write_project(
            project, kind="expert", package_id=name, summary="taps"
        )
        plan = ExpertPlan(id=name, writes="hidden", **where)
        write_plan(project, plan)
        rows = [redhost.Row(text=t, label=y) for t, y in texts_of(name, 60)]
        train_package(
            project,
            plan,
            split_rows(rows),
            context=redhost_author.open_for_training(backbone_folder),
            settings=SETTINGS,
        )
        return folder

    return build


@pytest.fixture(scope="module")
def folders(make, expert_folders) -> dict[str, Path]:
    """One expert that reads a block, one that writes to a block, one at the end."""
    return {
        "red": make("red", reads_tap="0"),
        "green": make("green", reads_tap="0", writes_tap="layers.1"),
        "blue": expert_folders["blue"],
    }


@pytest.fixture(scope="module")
def composed(backbone_folder, folders) -> redhost.ComposedModel:
    return compose(backbone_folder, list(folders.values())).composed


def test_experts_that_tap_learn_their_domain(folders) -> None:
    for name in ("red", "green"):
        metrics = json.loads((folders[name] / "expert.json").read_text())["training"]["metrics"]
        assert metrics["train"] > 0.75 and metrics["gate"] > 0.6, (name, metrics)


def test_every_expert_reads_what_its_manifest_says(composed) -> None:
    backbone, bus = composed.backbone, composed.bus
    texts = [r.text for r in composed.evaluation]
    wide = backbone.encode(texts)
    z = bus.norm(wide)
    h = backbone.trunk.encode(texts)
    assert torch.equal(bus.layout.base(wide), h)
    assert torch.equal(bus.layout.base(z), torch.nn.functional.layer_norm(h, h.shape[-1:]))
    block, graft = bus.layout.segments
    assert (block.readers, graft.readers) == (("red",), ("green",))
    read = bus.layout.read(z, "red")
    torch.testing.assert_close(read.mean(-1), torch.zeros(len(texts)), atol=1e-5, rtol=0)
    green = bus.parts()[bus.ids.index("green")]
    assert isinstance(green, InTrunkExpert) and torch.equal(
        green(bus.layout.read(z, "green")), graft.compute(texts) - h
    )


def test_one_at_full_weight_is_the_trunk_with_its_step(composed) -> None:
    """RED's sum with α one-hot on the grafted expert, against the hooked trunk itself."""
    bus, backbone = composed.bus, composed.backbone
    texts = [r.text for r in composed.evaluation]
    wide = backbone.encode(texts)
    column = bus.ids.index("green")
    p = bus.alone(wide, bus.norm(wide), column)
    moved = bus.layout.segments[1].compute(texts)
    assert torch.equal(p, torch.softmax(moved @ backbone.classifier.T, -1))


def test_the_laws_of_the_bus_hold(composed) -> None:
    h = composed.backbone.encode([r.text for r in composed.evaluation])
    z = composed.bus.norm(h)
    nothing = composed.bus.probabilities(h, z, torch.zeros(len(h), len(composed.bus.columns)))
    narrow = composed.bus.layout.base(h)
    assert torch.equal(nothing, torch.softmax(narrow @ composed.backbone.classifier.T, -1))


def test_a_composition_with_taps_routes_and_answers(composed) -> None:
    rows = composed.evaluation
    result = evaluate(composed, rows, encode=composed.backbone.encode)
    assert result.overall > result.baselines["backbone"] + 0.2
    assert result.routing is not None and not result.routing.dead


@pytest.mark.parametrize("router", ["evidence", "linear", "attention", "topk:k=1"])
def test_every_kind_of_router_sees_z_alone(backbone_folder, folders, router) -> None:
    options = RecomposeOptions(router=router, accept=True)
    made = compose(backbone_folder, list(folders.values()), options=options).composed
    [answer] = made.answer(["red 61 b"])
    assert answer.label in "ab"


def test_features_of_taps_are_remembered_by_what_computes_them(composed, tmp_path) -> None:
    texts = [r.text for r in composed.evaluation][:6]
    cache = FeatureCache(tmp_path, backbone=composed.backbone, fingerprint="f")
    assert torch.equal(cache.encode(texts), composed.backbone.encode(texts))
    assert len(list(tmp_path.glob("*.sqlite"))) == 3
    assert torch.equal(cache.encode(texts), composed.backbone.encode(texts))


@pytest.mark.parametrize("where", [{"reads_tap": "0"}, {"reads_tap": "0", "writes_tap": "1"}])
def test_an_interrupted_training_goes_on_to_the_same_bytes(
    make, backbone_folder, texts_of, tmp_path, monkeypatch, where
) -> None:
    monkeypatch.setattr("redhost_author.training.expert.SAVING", float("inf"))  # after every epoch
    once = make("green", **where)
    plan = ExpertPlan(id="green", writes="hidden", **where)
    project = tmp_path / "red-expert-green"
    folder = redhost_author.write_project(
        project, kind="expert", package_id="green", summary="taps"
    )
    rows = [redhost.Row(text=t, label=y) for t, y in texts_of("green", 60)]
    seen = []

    def train(progress) -> None:
        context = redhost_author.open_for_training(backbone_folder)
        train_package(
            project, plan, split_rows(rows), context=context, settings=SETTINGS, progress=progress
        )

    def stop(done: int, total: int) -> None:
        if done == 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(stop)
    assert not (folder / "expert.safetensors").exists()
    train(lambda done, _: seen.append(done))
    assert seen[0] == 12
    for name in ("expert.safetensors", "expert.json"):
        assert (folder / name).read_bytes() == (once / name).read_bytes()


def test_without_the_plugin_it_is_left_out_and_the_extra_is_named(
    backbone_folder, folders, monkeypatch
) -> None:
    monkeypatch.setattr(manager, "plugin_entry_points", lambda _: ())
    receipt = compose(backbone_folder, list(folders.values())).receipt
    assert receipt.experts.keys() == {"blue"}
    assert {x.id: x.code for x in receipt.left_out} == dict.fromkeys(
        ("green", "red"), "form_unknown"
    )
    assert all("the form 'inside'" in x.reason for x in receipt.left_out)
    files = read_expert(from_folder(folders["red"])).unwrap("red")
    [wrong] = Verifier().expert(files, backbone=None)
    assert wrong.code == "form_unknown" and how_to_install("peft") in wrong.hint


def test_a_form_with_an_intervention_of_its_own_keeps_it(folders) -> None:
    class Scale(redhost.Expert):
        def intervention(self, backbone): ...

    files = read_expert(from_folder(folders["red"])).unwrap("red")
    make = partial(
        redhost.plugins.Plugins().make,
        "redhost_register_forms",
        "inside",
        redhost.Expert,
        what="it",
        manifest=files.manifest,
    )
    scale, plain = Scale(space="hidden", labels=()), redhost.Expert(space="hidden", labels=())
    assert make(expert=scale) is scale
    made = make(expert=plain)
    assert (made.expert, made.reads_tap, made.writes_tap) == (plain, "0", "final")


def test_taps_the_trunk_has_not_are_violations(bare) -> None:
    unknown = check_taps("x", bare, reads="9", writes="final")
    assert unknown is not None and unknown.code == "tap_unknown" and "0 … 2" in unknown.reason
    options = check_taps("x", bare, reads="2", writes="1")
    assert options is not None and options.code == "tap_order"
    assert check_taps("x", bare, reads="1", writes="2") is None


@pytest.mark.parametrize(
    ("where", "message"),
    [({"reads_tap": "9"}, "0 … 2"), ({"reads_tap": "2", "writes_tap": "1"}, "block 2 or a later")],
)
def test_an_author_is_reported_before_anything_is_trained(make, where, message) -> None:
    with pytest.raises(redhost.errors.ContractError, match=message) as caught:
        make("red", **where)
    assert "'red'" in caught.value.problem


def test_without_taps_nothing_is_wide(bare, composed) -> None:
    plain = composed.bus.parts()[composed.bus.ids.index("blue")]
    assert with_layout(bare, {"blue": plain}) is bare
    layout = FeatureLayout(width=bare.width)
    x = torch.randn(3, bare.width)
    assert layout.base(x) is x and layout.pad(x) is x
    z, h = inside_reader(bare, "blue", plain)(["blue 1"]), bare.encode(["blue 1"])
    assert torch.equal(z, torch.nn.functional.layer_norm(h, h.shape[-1:]))


def test_readers_of_what_is_not_known_are_silent(composed) -> None:
    """Rows of a vectors card have no taps: zeros stay zeros, and a residual expert says nothing."""
    layout = composed.bus.layout
    h = torch.randn(3, composed.backbone.width)
    z = composed.bus.norm(layout.pad(h))
    assert isinstance(composed.bus.norm, WideNorm)
    assert not layout.read(z, "red").any()
    assert not composed.bus.delta(z, composed.bus.ids.index("red")).any()
