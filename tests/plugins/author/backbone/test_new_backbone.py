"""A backbone package from any encoder: carried, referred to, adapted or as it is."""

from __future__ import annotations

import shutil

import pytest
import redhost_author
import torch
from redhost_author.backbone.adapt import AdaptSettings
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.training.context import open_backbone
from redhost_serve.trial import is_right

import redhost
from redhost.core.composition.recompose import compose
from redhost.core.evaluation.evaluate import evaluate
from redhost.core.label_sets import DECLINED
from redhost.core.training.rows import read_texts
from redhost.core.types import BackgroundRow
from redhost.registry.errors import InputTypeError, UsageError

ROWS = [redhost.Row(text=f"{w} {n}", label=w) for w in ("red", "green") for n in range(6)]


def test_a_folder_is_carried_and_answers_like_its_source(model_folder, tmp_path) -> None:
    manifest = new_backbone(
        tmp_path,
        BackbonePlan(id="mine", source=f"hf:{model_folder}", pooling="last", features=None),
    )
    assert manifest.base.kind == "carried" and "model.safetensors" in manifest.base.files
    assert manifest.labels == () and manifest.classifier is None and manifest.delta is None
    _, loaded, _ = open_backbone(tmp_path / "src" / "red_backbone_mine")
    source = redhost.Backbone.load(f"hf:{model_folder}", pooling="last")
    assert torch.equal(loaded.encode(["red 1"]), source.encode(["red 1"]))


def test_with_data_the_top_blocks_are_adapted_and_stored_as_a_delta(model_folder, tmp_path) -> None:
    manifest = new_backbone(
        tmp_path,
        BackbonePlan(id="mine", source=f"hf:{model_folder}"),
        rows=ROWS,
        settings=AdaptSettings(last_blocks=1, epochs=2),
        background=[BackgroundRow(text="else")],
        evaluation=ROWS[:2],
    )
    assert manifest.labels == ("green", "red")
    assert manifest.delta is not None and manifest.classifier is not None
    assert (manifest.background.rows, manifest.evaluation.rows) == (1, 2)
    _, loaded, background = open_backbone(tmp_path / "src" / "red_backbone_mine")
    assert loaded.fingerprint() == manifest.fingerprint and len(background) == 1


def test_a_hub_name_needs_a_pinned_revision(offline_hub, model_folder, tmp_path) -> None:
    shutil.copytree(model_folder, offline_hub / "models--Qwen--Qwen3-0.6B" / "snapshots" / "abc123")
    with pytest.raises(UsageError, match="expected the commit, with --revision"):
        new_backbone(tmp_path / "new", BackbonePlan(id="mine", source="hf:Qwen/Qwen3-0.6B"))
    assert not (tmp_path / "new").exists()  # refused before a download
    manifest = new_backbone(
        tmp_path / "new", BackbonePlan(id="mine", source="hf:Qwen/Qwen3-0.6B", revision="abc123")
    )
    assert (manifest.base.kind, manifest.base.id, manifest.base.revision) == (
        "hub",
        "Qwen/Qwen3-0.6B",
        "abc123",
    )


def test_what_is_refused_leaves_no_project_behind(monkeypatch, bare, tmp_path) -> None:
    monkeypatch.setattr(redhost.Backbone, "load", classmethod(lambda cls, *a, **k: bare))
    with pytest.raises(UsageError, match="no revision is pinned"):
        new_backbone(tmp_path / "new", BackbonePlan(id="mine", source="hf:Qwen/Qwen3-0.6B"))
    assert not (tmp_path / "new").exists()


def test_a_folders_vocabulary_is_carried_whatever_its_kind(model_folder, tmp_path) -> None:
    source = shutil.copytree(model_folder, tmp_path / "model")
    for name in ("words.tiktoken", "chat_template.jinja", "model.py", "model.bin"):
        (source / name).write_bytes(b"x")
    manifest = new_backbone(tmp_path / "new", BackbonePlan(id="mine", source=f"hf:{source}"))
    assert {p.name for p in model_folder.iterdir()} | {"words.tiktoken"} == set(manifest.base.files)


def test_background_texts_are_one_a_line(tmp_path) -> None:
    path = tmp_path / "texts.txt"
    path.write_text("one\n\n two \none\n")
    assert [r.text for r in read_texts(path)] == ["one", "two"]
    path.write_text("\n")
    with pytest.raises(UsageError, match="has no texts"):
        read_texts(path)


def test_experts_with_labels_of_their_own_need_no_backbone_labels(model_folder, tmp_path) -> None:
    """A backbone without a classifier, two experts with disjoint labels, one proper mixture."""
    from redhost_author.project import ExpertPlan, write_plan
    from redhost_author.training.context import AuthoringContext
    from redhost_author.training.data import split_rows
    from redhost_author.training.recipes import train_package

    background = [BackgroundRow(text=f"nothing {n}") for n in range(20)]
    new_backbone(
        tmp_path / "b", BackbonePlan(id="bare", source=f"hf:{model_folder}"), background=background
    )
    folder = tmp_path / "b" / "src" / "red_backbone_bare"
    manifest, backbone, rows = open_backbone(folder)
    context = AuthoringContext(
        backbone=backbone, manifest=manifest, background=rows, encode=backbone.encode
    )
    experts = []
    for name, labels in (("red", "ab"), ("blue", ("none", "c|d"))):
        plan = ExpertPlan(id=name, rank=4)
        redhost_author.write_project(tmp_path / name, kind="expert", package_id=name, summary=name)
        write_plan(tmp_path / name, plan)
        data = [redhost.Row(text=f"{name} {n}", label=labels[n % 2]) for n in range(80)]
        settings = redhost_author.ExpertSettings(
            space="labels", rank=4, epochs=40, learning_rate=1e-2, off_domain=1e-3
        )
        train_package(tmp_path / name, plan, split_rows(data), context=context, settings=settings)
        experts.append(tmp_path / name / "src" / f"red_expert_{name}")
    composed = compose(folder, experts).composed
    assert composed.bus.labels == (DECLINED, "c|d", "none", "a", "b")
    h = backbone.encode(["red 81", "blue 82", "nothing 4"])
    p, alpha = composed.bus(h)
    torch.testing.assert_close(p.sum(-1), torch.ones(3))
    assert alpha.argmax(-1).tolist() == [1, 0, 2]
    named, declined = composed.answer(["blue 82", "nothing 4"])
    assert (named.label, named.declined) == ("none", False)
    assert (declined.label, declined.declined) == ("none", True)
    assert "declined" in declined._repr_html_() and "declined" not in named._repr_html_()
    assert is_right(composed, named, "none") and not is_right(composed, declined, "none")
    rows = [redhost.Row(text=t, label="none") for t in ("blue 82", "nothing 4", "red 81")]
    right = composed.bus.task.head.right(composed.bus(h[[1, 2, 0]])[0], rows, composed.bus.labels)
    assert right.tolist() == [1, 0, 0]
    scores = evaluate(composed, rows, encode=backbone.encode).labels
    assert scores is not None and (scores["none"].precision, scores["none"].recall) == (1, 1 / 3)


def test_a_background_of_plain_texts_is_refused(tmp_path, model_folder) -> None:
    plan = BackbonePlan(id="b", source=f"hf:{model_folder}")
    with pytest.raises(InputTypeError, match="background row"):
        new_backbone(tmp_path / "b", plan, background=["nothing"])
    assert not (tmp_path / "b").exists()
