"""An imported adapter, through the backbone's own labels: package, host, answers, refusals."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from redhost_author.project import ExpertPlan, package_in
from redhost_peft.adapter import import_adapter
from redhost_peft.peft_adapter import CONFIG, WEIGHTS
from safetensors.torch import load, save

import redhost
from redhost import RedhostError, UsageError
from redhost.cli import cli
from redhost.core.backbones.feature_cache import FeatureCache
from redhost.core.plugins import manager
from redhost.errors import ContractError, PluginError
from redhost.plugins import TextEncoder
from redhost.registry.environment.extras import how_to_install
from redhost.registry.package.discover import discover, from_folder

Files = dict[str, bytes]


@pytest.fixture(scope="module")
def adapter(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Files:
    """DoRA of the last two blocks, as if it had been trained on a classifier of the model."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModel

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(4)
        model = AutoModel.from_pretrained(model_folder, dtype=torch.float32)
        targets = [f"layers.{n}.mlp.up_proj" for n in (1, 2)]
        made = get_peft_model(model, LoraConfig(target_modules=targets, r=2, use_dora=True))
        with torch.no_grad():
            for name, p in made.named_parameters():
                if "lora_" in name:
                    p.add_(0.3 * torch.randn_like(p))
        folder = tmp_path_factory.mktemp("adapter")
        made.save_pretrained(folder)
    return {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS)}


@pytest.fixture
def rows(texts_of) -> list[redhost.Row]:
    return [redhost.Row(text=text, label=label) for text, label in texts_of("red", 80)]


@pytest.fixture
def take_in(installed, rows, tmp_path) -> Callable[..., Path]:
    """Return the function that imports an adapter for the toy backbone."""
    [package] = (p for p in discover("backbone") if p.dist == "red-backbone-toy")

    def make(files: Files, *, given: list[redhost.Row] | None = None, **fields: Any) -> Path:
        project = tmp_path / "red-expert-wave"
        plan = ExpertPlan(id="wave", form="lora", **fields)
        made = import_adapter(
            project, plan, files, given or rows, package=package, home=tmp_path / "home"
        )
        assert made.manifest.training.epochs == 0
        return project

    return make


def encoder_of_peft(
    bare: redhost.Backbone, model_folder: Path, adapter: Files, folder: Path
) -> TextEncoder:
    """Return the encoder with PEFT's own model in it."""
    from peft import PeftModel
    from transformers import AutoModel

    folder.mkdir()
    for name, data in adapter.items():
        (folder / name).write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModel.from_pretrained(model_folder, dtype=torch.float32)
        model = PeftModel.from_pretrained(model, folder).eval().base_model.model
    return TextEncoder(model=model, tokenizer=bare.trunk.tokenizer, pooling=bare.trunk.pooling)


def test_through_the_backbones_labels_it_answers_at_weight_one_as_pefts_model(
    installed, take_in, adapter, tmp_path, bare, model_folder
) -> None:
    project = take_in(adapter)
    manifest = json.loads((package_in(project) / "expert.json").read_text())
    assert manifest["writes"]["space"] == "hidden" and [*manifest["files"]] == [CONFIG]
    assert manifest["off_domain"] > 0
    installed.install(project)
    texts = ["red 1 a", "green 22 c", "blue 3", "red 45 b"]
    with redhost.Host.open(tmp_path / "home", backbone="toy") as host:
        receipt = host.recompose(accept=True)
        model, answers = host.composed, host.predict(texts)
    assert "wave" in receipt.experts
    # No kind that asks experts: one column has all the weight, so that no other adapter runs.
    assert receipt.router.kind in {"ridge:k=1", "statistics:k=1"} == {*receipt.router.tried}
    assert all(sorted(a.weights.values())[-2:] == [0.0, 1.0] for a in answers)
    bus, trunk = model.bus, model.backbone.trunk
    with torch.inference_mode():
        h = model.backbone.encode(texts)
        [segment] = bus.layout.segments
        assert segment.compute is not None
        moved = segment.compute(texts)
        alone = bus.alone(h, bus.norm(h), bus.ids.index("wave"))
        assert torch.equal(alone, torch.softmax(moved @ model.backbone.classifier.T, -1))
        theirs = encoder_of_peft(bare, model_folder, adapter, tmp_path / "peft").encode(texts)
        torch.testing.assert_close(moved, theirs, rtol=1e-4, atol=1e-5)
        none = bus.residual(h, bus.norm(h), torch.zeros(len(h), len(bus.columns)))
        assert torch.equal(none, trunk.encode(texts))
        assert not torch.equal(moved, none)
    with redhost.Host.open(tmp_path / "home", backbone="toy") as host:
        assert host.predict(texts) == answers
        # Its rows are remembered under the adapter's digest.
        cache = FeatureCache(
            tmp_path / "home" / "cache" / "features",
            backbone=host.composed.backbone,
            fingerprint=host.composed.fingerprint,
        )
        fit = [r.text for r in host.composed.cards["wave"].rows]
        assert all(table.read(fit).keys() == {*fit} for table in cache.tables)


def test_labels_that_the_backbone_has_not_get_a_head(take_in, adapter, rows) -> None:
    given = [redhost.Row(text=r.text, label=f"own {r.label}") for r in rows]
    project = take_in(adapter, given=given)
    manifest = json.loads((package_in(project) / "expert.json").read_text())
    assert manifest["writes"]["space"] == "labels" and manifest["labels"] == ["own a", "own b"]
    assert manifest["training"]["metrics"]["gate"] > 0.8
    assert "head.safetensors" in {p.name for p in package_in(project).iterdir()}


def rewrite(folder: Path, name: str, data: bytes, role: str) -> None:
    """Replace a file of a package, with its digest in the manifest."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "expert.json").read_text())
    place, key = (manifest["files"], name) if role == "files" else (manifest[role], "sha256")
    place[key] = hashlib.sha256(data).hexdigest()
    (folder / "expert.json").write_text(json.dumps(manifest))


def test_a_host_computes_the_canary_from_its_tokens(installed, take_in, adapter, tmp_path) -> None:
    """The twins: weights, a scale and tokens that its author did not see."""
    folder = package_in(take_in(adapter))
    weights = {name: 1.01 * t for name, t in load(adapter[WEIGHTS]).items()}
    scaled = json.loads(adapter[CONFIG]) | {"lora_alpha": 9}
    canary = load((folder / "canary.safetensors").read_bytes())
    other = {**canary, "tokens": canary["tokens"].flip(0)}
    beyond = {**canary, "tokens": canary["tokens"] + 10**6}
    cases = [
        (WEIGHTS, save(weights), "weights"),
        (CONFIG, json.dumps(scaled).encode(), "files"),
        ("canary.safetensors", save(other), "canary"),
        ("canary.safetensors", save(beyond), "canary"),
    ]
    for name, data, role in cases:
        before = {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}
        rewrite(folder, name, data, role)
        with (
            redhost.Host.open(tmp_path / "home", backbone="toy") as host,
            pytest.raises(RedhostError, match="expected the recorded z within") as refused,
        ):
            host.attach(folder.parents[1])
        assert "wave" in refused.value.problem and refused.value.hint
        for file, content in before.items():
            (folder / file).write_bytes(content)
    assert from_folder(folder.parents[1]).kind == "expert"


@pytest.mark.parametrize("code", ["adapter_config", "adapter_misfit"])
def test_what_only_the_plugin_knows_is_one_line_of_every_command(
    installed, take_in, adapter, tmp_path, code
) -> None:
    project = take_in(adapter)
    folder = package_in(project)
    if code == "adapter_config":
        config = {**json.loads(adapter[CONFIG]), "init_lora_weights": "pissa"}
        rewrite(folder, CONFIG, json.dumps(config).encode(), "files")
    else:
        manifest = json.loads((folder / "expert.json").read_text())
        weights = load(adapter[WEIGHTS])
        narrow = {n: t if "_A" in n else t[:-1].contiguous() for n, t in weights.items()}
        manifest["tensors"] = {n: [*t.shape] for n, t in narrow.items()}
        (folder / "expert.json").write_text(json.dumps(manifest))
        rewrite(folder, WEIGHTS, save(narrow), "weights")
    options = ("--home", str(tmp_path / "home"), "--backbone", "toy")
    run = partial(CliRunner().invoke, cli)
    assert run(["pack", str(project), *options]).exit_code == 0
    [wheel] = (project / "dist").iterdir()
    checked = run(["check", str(wheel), *options, "--json"])
    assert checked.exit_code == 1 and not isinstance(checked.exception, RedhostError)
    assert code in [v["code"] for v in json.loads(checked.output)[0]["violations"]]
    field = "init_lora_weights" if code == "adapter_config" else "layers.1.mlp.up_proj"
    with redhost.Host.open(tmp_path / "home", backbone="toy") as host:
        host.recompose(accept=True)
    added = run(["add", str(wheel), *options])
    assert isinstance(added.exception, RedhostError) and field in str(added.exception)
    installed.install(project)
    listed = json.loads(run(["list-experts", *options, "--json"]).output)
    assert {x["id"]: x["state"] for x in listed}["wave"] == "enabled"  # no code of a plugin ran
    with redhost.Host.open(tmp_path / "home", backbone="toy") as host:
        left_out = {x.id: x for x in host.recompose(accept=True).left_out}["wave"]
    assert left_out.code == code and field in left_out.reason


@pytest.mark.parametrize(
    ("change", "problem", "match"),
    [
        ({"target_modules": ["up_proj"]}, ContractError, "layers.0.mlp.up_proj"),
        ({"target_modules": ["down_proj"]}, ContractError, "only modules"),
        ({"modules_to_save": ["q_proj"]}, ContractError, "config.json saves, found none"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    take_in, adapter, tmp_path, change, problem, match
) -> None:
    config = json.dumps(json.loads(adapter[CONFIG]) | change).encode()
    with pytest.raises(problem, match=match):
        take_in({**adapter, CONFIG: config})
    assert not (tmp_path / "red-expert-wave").exists()


def test_labels_of_a_classifier_and_others_together_are_refused_where_it_is_to_be_shared(
    take_in, adapter, rows
) -> None:
    given = [redhost.Row(text=r.text, label=f"own {r.label}") for r in rows]
    with pytest.raises(UsageError, match="through the backbone's classifier"):
        take_in(adapter, given=given, writes="hidden")


@pytest.mark.parametrize(("router", "waits"), [("hard", True), ("evidence", False)])
def test_a_text_that_gives_it_no_weight_costs_no_pass(
    installed, take_in, adapter, tmp_path, texts_of, router, waits
) -> None:
    installed.install(take_in(adapter))
    texts = [text for word in ("red", "green", "blue") for text, _ in texts_of(word, 8)]
    with redhost.Host.open(tmp_path / "home", backbone="toy") as host:
        host.recompose(accept=True, router=router)
        model = host.composed
    layout = model.backbone.layout
    [segment] = layout.segments
    passed: list[str] = []

    compute = segment.compute
    assert compute is not None

    def count(some: list[str]) -> torch.Tensor:
        passed.extend(some)
        return compute(some)

    counted = replace(layout, segments=(replace(segment, compute=count),))
    model = replace(model, backbone=replace(model.backbone, layout=counted))
    with torch.inference_mode():
        p, alpha = model.bus(model.features(texts))
        whole = model.bus(model.backbone.encode(texts))
    assert torch.equal(p, whole[0]) and torch.equal(alpha, whole[1])
    column = model.bus.ids.index("wave")
    active = [text for text, row in zip(texts, alpha.tolist(), strict=True) if row[column]]
    assert passed[: -len(texts)] == (active if waits else texts)
    assert not waits or 0 < len(active) < len(texts)


def test_without_the_plugin_it_is_shown_and_left_out_and_the_extra_is_named(
    installed, take_in, adapter, tmp_path, monkeypatch
) -> None:
    installed.install(take_in(adapter))
    (tmp_path / "rows.csv").write_text("text,label\n" + "red 1 a,a\nred 2 b,b\n" * 20)
    monkeypatch.chdir(tmp_path)
    home, other, how = tmp_path / "home", tmp_path / "other", how_to_install("peft")
    with redhost.Host.open(home, backbone="toy") as host:
        assert "wave" in host.recompose(accept=True).experts
    monkeypatch.setattr(manager, "plugin_entry_points", lambda _: ())
    run = partial(CliRunner().invoke, cli)
    listed = run(["list-experts", "--home", str(other), "--backbone", "toy", "--json"]).output
    shown = {x["id"]: (x["form"], x["state"], x["code"]) for x in json.loads(listed)}
    assert shown["wave"] == ("lora", "enabled", None)
    checked = run(["check", "red", "wave", "--home", str(other), "--backbone", "toy"])
    assert checked.exit_code == 1 and checked.output.startswith("red: ok\nwave: failed\n")
    assert checked.output.count(how) == 1
    with redhost.Host.open(other, backbone="toy") as host:
        receipt = host.recompose()
        assert receipt.experts.keys() == {"red", "green", "blue"}
        assert ("wave", "form_unknown") in {(x.id, x.code) for x in receipt.left_out}
    with pytest.raises(PluginError, match="'redhost-peft' made a part") as e:
        redhost.Host.open(home, backbone="toy").predict(["red 1 a"])
    assert how in str(e.value.hint)
    assert run(["new-expert", "plain", "--form", "lora", "--backbone", "toy"]).exit_code == 0
    refused = run(["train-expert", "red-expert-plain", "--data", "rows.csv", "--backbone", "toy"])
    assert isinstance(refused.exception, PluginError) and how in str(refused.exception.hint)
    write = ["new-expert", "deep", "--writes", "hidden", "--reads-tap", "0", "--writes-tap", "1"]
    assert run([*write, "--backbone", "toy"]).exit_code == 0
    refused = run(["train-expert", "red-expert-deep", "--data", "rows.csv", "--backbone", "toy"])
    assert isinstance(refused.exception, PluginError) and how in str(refused.exception.hint)
