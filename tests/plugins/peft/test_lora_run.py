"""An adapter that is trained here: PEFT makes it and reads it, and a stop changes no bit of it."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redhost_author
import safetensors.torch
import torch
from redhost_author.project import ExpertPlan, package_in
from redhost_author.training.context import AuthoringContext
from redhost_author.training.recipes import train_package
from redhost_peft.graft import moved_by
from redhost_peft.lora_run import fresh_adapter
from redhost_peft.peft_adapter import CONFIG, WEIGHTS, read_adapter

import redhost
from redhost import MissingError, UsageError
from redhost.core.model.build import make_expert_module
from redhost.registry.package.discover import from_folder
from redhost.registry.package.manifest import ExpertManifest
from redhost.registry.package.readers import read_expert

Train = Callable[..., ExpertManifest]
SETTINGS = redhost_author.ExpertSettings(
    form="lora", rank=2, epochs=3, batch=8, learning_rate=1e-2, off_domain=0.01
)


@pytest.fixture(scope="module")
def context(backbone_folder) -> AuthoringContext:
    return redhost_author.open_for_training(backbone_folder)


@pytest.fixture
def train(context, texts_of, tmp_path) -> Train:
    """Return the function that trains an adapter into tmp_path / "red-expert-red"."""

    def make(*, own: bool = True, progress: Any = None, **plan: Any) -> ExpertManifest:
        mark = "own " if own else ""
        rows = [redhost.Row(text=t, label=f"{mark}{y}") for t, y in texts_of("red", 48)]
        project = tmp_path / "red-expert-red"
        redhost_author.write_project(project, kind="expert", package_id="red", summary="red")
        return train_package(
            project,
            ExpertPlan(id="red", form="lora", **plan),
            redhost_author.split_rows(rows),
            context=context,
            settings=SETTINGS if own else replace(SETTINGS, epochs=12),
            progress=progress,
        )

    return make


def loaded(folder: Path, backbone: redhost.Backbone) -> Any:
    files = read_expert(from_folder(folder)).unwrap("red")
    plugins = redhost.plugins.Plugins()
    made = make_expert_module(files, bus=backbone.bus_config(), plugins=plugins, providers={})
    return made.unwrap("red")


def test_it_begins_as_peft_makes_it_and_adds_nothing(context) -> None:
    files = fresh_adapter(context.backbone, rank=3, blocks=1, targets=("q_proj", "mlp.up_proj"))
    config = json.loads(files[CONFIG])
    assert (config["r"], config["lora_alpha"], config["peft_type"]) == (3, 6, "LORA")
    assert config["base_model_name_or_path"] == context.backbone.name
    adapter = read_adapter(files[CONFIG], files[WEIGHTS]).unwrap("it")
    ends = {name.partition("layers.")[2] for name in adapter.layers}
    blocks = context.backbone.trunk.model.config.num_hidden_layers
    assert ends == {f"{blocks - 1}.self_attn.q_proj", f"{blocks - 1}.mlp.up_proj"}
    tensors = safetensors.torch.load(files[WEIGHTS])
    assert all(bool(t.any()) == ("lora_A" in name) for name, t in tensors.items())
    assert fresh_adapter(context.backbone, seed=1) == fresh_adapter(context.backbone, seed=1)
    assert fresh_adapter(context.backbone, seed=1) != fresh_adapter(context.backbone, seed=2)


def test_without_options_it_adapts_every_linear_layer_of_the_upper_half(context) -> None:
    files = fresh_adapter(context.backbone)
    adapter = read_adapter(files[CONFIG], files[WEIGHTS]).unwrap("it")
    blocks = context.backbone.trunk.model.config.num_hidden_layers
    found = {int(name.partition("layers.")[2].partition(".")[0]) for name in adapter.layers}
    assert found == {*range(blocks // 2, blocks)} and adapter.rank == 8
    assert len(adapter.layers) == 7 * len(found)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"blocks": 99}, "expected at most"), ({"targets": ("q_prj",)}, "no linear layer 'q_prj'")],
)
def test_what_the_trunk_has_not_is_refused(context, options, message) -> None:
    with pytest.raises(UsageError, match=message):
        fresh_adapter(context.backbone, **options)


def test_without_peft_the_extra_is_named(context, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingError, match=r"redhost\[peft\]"):
        fresh_adapter(context.backbone)


@pytest.mark.parametrize("own", [True, False])
def test_it_learns_and_peft_makes_of_a_text_what_the_package_makes_of_it(
    train, context, model_folder, tmp_path, own
) -> None:
    from peft import PeftModel
    from transformers import AutoModel

    before = context.backbone.fingerprint()
    manifest = train(own=own)
    assert context.backbone.fingerprint() == before
    assert manifest.writes.space == ("labels" if own else "hidden")
    assert ("head.safetensors" in manifest.files) == own and manifest.training.epochs >= 1
    assert manifest.training.metrics["train"] > 0.9
    folder = package_in(tmp_path / "red-expert-red")
    expert = loaded(folder, context.backbone)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModel.from_pretrained(model_folder, dtype=torch.float32)
        theirs = PeftModel.from_pretrained(model, folder).eval()
    trunk, ids = context.backbone.trunk, torch.tensor([context.backbone.trunk.tokens("red 7 b")])
    with torch.inference_mode():
        h = trunk.pool(trunk.hidden_states(ids))
        moved = moved_by(trunk, ids, expert.intervention(context.backbone))
        expected = trunk.pool(theirs(input_ids=ids).last_hidden_state)
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(moved, h, atol=1e-3)


def test_one_that_was_stopped_goes_on_to_the_same_bytes(train, tmp_path) -> None:
    project = tmp_path / "red-expert-red"

    def read() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in package_in(project).glob("*.safetensors")}

    def stop(done: int, _: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    train()
    whole = read()
    for path in package_in(project).glob("*.safetensors"):
        path.unlink()
    with pytest.raises(KeyboardInterrupt):
        train(progress=stop)
    [left] = project.glob(".redhost-training-*.safetensors")
    assert not read()
    seen: list[int] = []
    train(progress=lambda done, _: seen.append(done))
    assert read() == whole and not left.exists()
    assert seen[0] == 2  # the first epoch was not trained again


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"writes": "logits"}, "hidden states or labels, and no taps"),
        ({"writes": "labels", "reads_tap": "1"}, "hidden states or labels, and no taps"),
        ({"writes": "hidden"}, "labels of backbone"),
    ],
)
def test_plans_that_no_adapter_can_have_are_refused(train, plan, message) -> None:
    with pytest.raises(UsageError, match=message):
        train(**plan)
