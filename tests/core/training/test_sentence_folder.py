"""What a folder of sentence-transformers says of its encoder is done, or refused by its name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import redhost
from redhost.core.training.sentence_folder import longest_input, pooling_of
from redhost.registry.package.project import package_in

MODULE = "sentence_transformers.models."


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
        ({"pooling_mode": "cls"}, "first"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
@pytest.mark.parametrize(
    "kinds", [("Transformer", "Pooling"), ("Transformer", "Pooling", "Normalize")]
)
def test_pooling_is_what_it_says(tmp_path, pooling, kinds, expected) -> None:
    assert pooling_of(write(tmp_path, *kinds, pooling=pooling)) == expected


@pytest.mark.parametrize(
    ("kinds", "pooling", "config"),
    [
        (("Transformer", "Pooling", "Dense"), {"pooling_mode_mean_tokens": True}, {}),
        (("Transformer", "Pooling"), {"pooling_mode_max_tokens": True}, {}),
        (("Transformer", "Pooling"), {"pooling_mode_weightedmean_tokens": True}, {}),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            {},
        ),
        (("Transformer", "Pooling"), {}, {}),
        (
            ("Transformer", "Pooling"),
            {"pooling_mode_mean_tokens": True},
            {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
        ),
    ],
)
def test_what_is_not_computed_here_is_refused(tmp_path, kinds, pooling, config) -> None:
    folder = write(tmp_path, *kinds, pooling=pooling, **config)
    with pytest.raises(redhost.UsageError, match="--pooling"):
        pooling_of(folder)


def test_another_folder_says_nothing(tmp_path) -> None:
    assert pooling_of(tmp_path) is None and longest_input(tmp_path) is None
    (tmp_path / "modules.json").write_text("no JSON")
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 0}')
    assert pooling_of(tmp_path) is None and longest_input(tmp_path) is None


def test_a_prompt_that_is_not_the_default_one_is_no_obstacle(tmp_path) -> None:
    folder = write(
        tmp_path,
        "Transformer",
        "Pooling",
        pooling={"pooling_mode_cls_token": True},
        prompts={"query": "query: ", "document": ""},
        default_prompt_name=None,
    )
    assert pooling_of(folder) == "first"


def test_a_backbone_is_made_as_its_folder_says(tmp_path, model_folder) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    write(folder, "Transformer", "Pooling", pooling={"pooling_mode_cls_token": True})
    background = [redhost.authoring.BackgroundRow(text=f"nothing {n}") for n in range(4)]

    def made(name: str, **options: Any) -> tuple[Any, redhost.Backbone]:
        project = tmp_path / name
        redhost.authoring.new_backbone(
            project, name, f"hf:{folder}", background=background, features=None, **options
        )
        manifest, backbone, _ = redhost.authoring.open_backbone(package_in(project))
        return manifest, backbone

    manifest, backbone = made("first")
    assert (manifest.pooling, manifest.schema) == ("first", "redhost.backbone/1.4")
    plain = redhost.Backbone.load(f"hf:{folder}", pooling="first")
    texts = ["red 1 a", "a much longer text of blue 2 e"]
    assert backbone.encode(texts).tolist() == plain.encode(texts).tolist()
    manifest, mean = made("mean", pooling="mean")
    assert manifest.pooling == "mean" and manifest.schema != "redhost.backbone/1.4"
    assert mean.fingerprint() != backbone.fingerprint()
