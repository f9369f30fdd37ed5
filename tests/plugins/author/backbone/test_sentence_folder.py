"""What a folder of sentence-transformers says of its encoder is done, or refused by its name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import safetensors.torch
import torch
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.backbone.sentence_folder import SentenceFolder
from redhost_author.project import package_in
from redhost_author.training.context import open_backbone

import redhost
from redhost.core.backbones.pooling import Pooling
from redhost.core.types import BackgroundRow

MODULE = "sentence_transformers.models."


def pooling_of(folder: Path) -> Pooling | None:
    return SentenceFolder(str(folder)).pooling


def write(folder: Path, *kinds: str, pooling: dict[str, Any], **config: Any) -> Path:
    """Write the files of such a folder beside a model's."""
    folder.mkdir(exist_ok=True)
    modules = [
        {"idx": n, "name": str(n), "path": f"{n}_{kind}" if n else "", "type": MODULE + kind}
        for n, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for module in modules:
        if module["type"] == f"{MODULE}Pooling":
            (folder / module["path"]).mkdir(exist_ok=True)
            (folder / module["path"] / "config.json").write_text(json.dumps(pooling))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True, "word_embedding_dimension": 384}, "first"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean-sqrt"),
        ({"pooling_mode_weightedmean_tokens": True}, "weighted-mean"),
        ({"pooling_mode": "cls"}, "first"),
        ({"pooling_mode": "mean"}, "mean"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean-sqrt"),
        ({"pooling_mode": ["weightedmean"]}, "weighted-mean"),
    ],
)
@pytest.mark.parametrize(
    "kinds",
    [("Transformer", "Pooling"), ("Transformer", "Pooling", "Dropout", "Normalize")],
)
def test_pooling_is_what_it_says(tmp_path, pooling, kinds, expected) -> None:
    found = pooling_of(write(tmp_path, *kinds, pooling=pooling))
    assert found is not None and found.stated == expected


MEAN = {"pooling_mode": "mean"}
PLAIN = ("Transformer", "Pooling")


@pytest.mark.parametrize(
    ("kinds", "pooling", "config", "found"),
    [
        ((*PLAIN, "Normalize", "Dense"), MEAN, {}, "Normalize, Dense"),
        ((*PLAIN, "LayerNorm"), MEAN, {}, "LayerNorm"),
        (("Transformer", "Dense", "Pooling"), MEAN, {}, "Dense, Pooling"),
        (("Transformer",), MEAN, {}, "found Transformer"),
        (
            PLAIN,
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            {},
            "found cls, mean",
        ),
        (PLAIN, {"pooling_mode": ["cls", "max"]}, {}, "found cls, max"),
        (PLAIN, {"pooling_mode": "median"}, {}, "found median"),
        (PLAIN, {}, {}, "found none"),
        (
            PLAIN,
            {"pooling_mode_mean_tokens": True},
            {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
            "'query: '",
        ),
    ],
)
def test_what_is_not_computed_here_is_refused(tmp_path, kinds, pooling, config, found) -> None:
    folder = write(tmp_path, *kinds, pooling=pooling, **config)
    with pytest.raises(redhost.UsageError, match=f"{found}.*--pooling"):
        pooling_of(folder)


def test_a_module_that_only_has_the_name_is_refused(tmp_path) -> None:
    folder = write(tmp_path, *PLAIN, pooling=MEAN)
    modules = json.loads((folder / "modules.json").read_text())
    modules[1]["type"] = "mine.Pooling"
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(redhost.UsageError, match=r"found Transformer, mine\.Pooling"):
        pooling_of(folder)


DENSE = {"activation_function": "torch.nn.modules.activation.ReLU"}
LINEAR = {"linear.weight": torch.arange(12.0).view(3, 4), "linear.bias": torch.ones(3)}


def with_dense(folder: Path, tensors: dict[str, torch.Tensor], **config: Any) -> Path:
    """Write a folder with one dense layer."""
    write(folder, *PLAIN, "Dense", pooling=MEAN)
    (folder / "2_Dense").mkdir()
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    if tensors:
        safetensors.torch.save_file(tensors, folder / "2_Dense" / "model.safetensors")
    return folder


@pytest.mark.parametrize("bias", [True, False])
def test_a_dense_layer_is_read(tmp_path, bias) -> None:
    tensors = LINEAR if bias else {"linear.weight": LINEAR["linear.weight"]}
    pooling = pooling_of(with_dense(tmp_path, tensors, **DENSE))
    assert pooling is not None and pooling.width(4) == 3
    states = torch.tensor([[[1.0, 0, 0, 0], [-3.0, 0, 0, 0]]])  # their mean is (−1, 0, 0, 0)
    expected = torch.tensor([[0.0, -4, -8]]) + float(bias)
    assert torch.equal(pooling(states), expected.relu())


@pytest.mark.parametrize(
    ("tensors", "config", "found"),
    [
        (LINEAR, {"activation_function": "mine.Swish"}, "activation_function mine.Swish"),
        (LINEAR, {**DENSE, "use_residual": True}, "use_residual True"),
        (
            LINEAR,
            {**DENSE, "module_input_name": "token_embeddings"},
            "module_input_name token_embeddings",
        ),
        (LINEAR, {**DENSE, "module_output_name": "other"}, "module_output_name other"),
        ({}, DENSE, "2_Dense/model.safetensors with linear.weight"),
        ({"weight": torch.ones(1)}, DENSE, "2_Dense/model.safetensors with linear.weight"),
    ],
)
def test_another_dense_layer_is_refused(tmp_path, tensors, config, found) -> None:
    folder = with_dense(tmp_path, tensors, **config)
    with pytest.raises(redhost.UsageError, match=f"{found}.*--pooling"):
        pooling_of(folder)


def test_another_folder_says_nothing(tmp_path) -> None:
    folder = SentenceFolder(str(tmp_path))
    assert folder.pooling is None and folder.longest_input is None
    (tmp_path / "modules.json").write_text("no JSON")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 0}')
    assert folder.pooling is None and folder.longest_input is None and not folder.is_lowered


def test_a_prompt_that_is_not_the_default_one_is_no_obstacle(tmp_path) -> None:
    folder = write(
        tmp_path,
        "Transformer",
        "Pooling",
        pooling={"pooling_mode_cls_token": True},
        prompts={"query": "query: ", "document": ""},
        default_prompt_name=None,
    )
    pooling = pooling_of(folder)
    assert pooling is not None and pooling.mode == "first"


def test_a_backbone_is_made_as_its_folder_says(tmp_path, model_folder) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    write(folder, "Transformer", "Pooling", pooling={"pooling_mode_cls_token": True})
    background = [BackgroundRow(text=f"nothing {n}") for n in range(4)]

    def made(name: str, **options: Any) -> tuple[Any, redhost.Backbone]:
        project = tmp_path / name
        plan = BackbonePlan(id=name, source=f"hf:{folder}", features=None, **options)
        new_backbone(project, plan, background=background)
        manifest, backbone, _ = open_backbone(package_in(project))
        return manifest, backbone

    manifest, backbone = made("first")
    assert (manifest.pooling, manifest.schema) == ("first", "redhost.backbone/1")
    plain = redhost.Backbone.load(f"hf:{folder}", pooling="first")
    texts = ["red 1 a", "a much longer text of blue 2 e"]
    assert backbone.encode(texts).tolist() == plain.encode(texts).tolist()
    manifest, mean = made("mean", pooling="mean")
    assert manifest.pooling == "mean"
    assert mean.fingerprint() != backbone.fingerprint()


@pytest.fixture
def encoder(tmp_path, model_folder) -> Path:
    """A folder with a dense layer, a limit and lower case."""
    folder = tmp_path / "encoder"
    shutil.copytree(model_folder, folder)
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    torch.manual_seed(0)
    tensors = {"linear.weight": torch.randn(5, width), "linear.bias": torch.randn(5)}
    with_dense(folder, tensors, **DENSE)
    stated = {"max_seq_length": 7, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps(stated))
    return folder


def test_a_package_carries_dense_layers_limit_and_lower_case(tmp_path, encoder) -> None:
    new_backbone(
        tmp_path / "p",
        BackbonePlan(id="x", source=f"hf:{encoder}", features=None),
    )
    package = package_in(tmp_path / "p")
    manifest, backbone, _ = open_backbone(package)
    assert (manifest.schema, manifest.width, manifest.max_tokens) == ("redhost.backbone/1", 5, 7)
    assert manifest.dense and manifest.dense[0].activation == "relu"
    texts = ["Red One A", "red one a"]
    assert torch.equal(*backbone.encode(texts).split(1))
    plain = redhost.Backbone.load(f"hf:{encoder}", pooling="mean", max_tokens=7)
    h = pooling_of(encoder).dense[0](plain.encode(texts[1:]))  # type: ignore[union-attr]
    assert torch.equal(backbone.encode(texts[:1]), h)
    assert plain.encode(texts[:1]).tolist() != plain.encode(texts[1:]).tolist()
    (package / "dense-0.safetensors").write_bytes(safetensors.torch.save({"weight": torch.ones(1)}))
    with pytest.raises(redhost.RedhostError, match=r"dense-0\.safetensors"):
        open_backbone(package)


def test_given_pooling_leaves_dense_layers_out(tmp_path, encoder) -> None:
    manifest = new_backbone(
        tmp_path / "p",
        BackbonePlan(id="x", source=f"hf:{encoder}", pooling="max", features=None),
    )
    assert (manifest.pooling, manifest.dense) == ("max", msgspec.UNSET)


def test_a_base_stage_keeps_the_dense_layers(tmp_path, encoder) -> None:
    rows = [redhost.Row(text=f"{w} {n}", label=w) for w in ("red", "green") for n in range(6)]
    manifest = new_backbone(tmp_path / "p", BackbonePlan(id="x", source=f"hf:{encoder}"), rows=rows)
    assert manifest.dense and manifest.width == 5
    _, backbone, _ = open_backbone(package_in(tmp_path / "p"))
    assert backbone.classifier is not None and backbone.classifier.shape == (2, 5)


@pytest.fixture
def hub(offline_hub, encoder) -> Path:
    """The folder under a hub name."""
    commit = offline_hub / "models--some--encoder" / "snapshots" / "abc123"
    return Path(shutil.copytree(encoder, commit))


def test_the_settings_of_a_hub_name_are_followed(tmp_path, hub) -> None:
    def made(name: str) -> Any:
        return new_backbone(
            tmp_path / name,
            BackbonePlan(id=name, source="hf:some/encoder", revision="abc123", features=None),
        )

    with pytest.raises(redhost.UsageError, match=r"lower case.*expected a folder"):
        made("lower")
    (hub / "sentence_bert_config.json").write_text('{"max_seq_length": 7}')
    manifest = made("cased")
    assert manifest.base.kind == "hub" and manifest.dense
    assert (manifest.width, manifest.pooling, manifest.max_tokens) == (5, "mean", 7)
