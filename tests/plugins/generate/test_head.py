"""The shared classifier of a generating backbone: its language-model head, or a clear refusal."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.project import package_in
from redhost_author.training.context import open_backbone

import redhost
from redhost.core.backbones.loading import head_of
from redhost.registry.errors import BackboneMismatchError, UsageError


@pytest.mark.parametrize("tied", [True, False])
def test_the_head_gives_the_models_own_logits(make_speaker, tmp_path, tied) -> None:
    from transformers import AutoModelForCausalLM

    folder = make_speaker(tmp_path, tied=tied)
    backbone = redhost.Backbone.load(f"hf:{folder}", task=redhost.plugins.make_task("generation"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor([[3, 1, 4, 1, 5]])
    with torch.inference_mode():
        found = backbone.trunk.hidden_states(ids)[0] @ backbone.classifier.T
        assert torch.allclose(found, model(input_ids=ids).logits[0], atol=1e-5)
    embedding: Any = backbone.trunk.model.get_input_embeddings().weight
    assert torch.equal(backbone.classifier, embedding) == tied
    assert backbone.trunk.head is not None
    assert backbone.trunk.head.t().is_contiguous()  # a token that is alone reads it sequentially
    assert (backbone.trunk.head.data_ptr() == embedding.data_ptr()) == tied  # and it is kept once


@pytest.mark.parametrize("twist", ["bias", "scale", "cap"])
def test_a_model_that_does_more_than_one_product_is_refused(speaker_model, twist) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(speaker_model, dtype=torch.float32).eval()
    head_of(model)
    plain = model.lm_head.forward
    twists = {
        "bias": lambda x: plain(x) + torch.linspace(0, 1, len(model.lm_head.weight)),
        "scale": lambda x: plain(x) * 0.5,
        "cap": lambda x: torch.tanh(plain(x)),
    }
    model.lm_head.forward = twists[twist]
    with pytest.raises(UsageError, match="Qwen3ForCausalLM does more to its states than one prod"):
        head_of(model)


def test_a_task_is_part_of_what_a_backbone_is(speaker, speaker_model) -> None:
    answers = redhost.Backbone.load(f"hf:{speaker_model}")
    assert answers.fingerprint() != speaker.fingerprint()
    again = redhost.Backbone.load(
        f"hf:{speaker_model}", task=redhost.plugins.make_task("generation")
    )
    assert again.fingerprint() == speaker.fingerprint()


def test_a_packaged_backbone_tells_like_its_source(speaker_folder, speaker) -> None:
    manifest, loaded, background = open_backbone(speaker_folder)
    assert (manifest.task, manifest.labels, manifest.classifier) == ("generation", (), None)
    assert len(background) == 8 and loaded.task.unit.generates
    assert torch.equal(loaded.classifier, speaker.classifier)
    assert torch.equal(loaded.encode(["hello"]), speaker.encode(["hello"]))


def test_another_head_is_another_backbone(speaker_folder, make_speaker, tmp_path) -> None:
    manifest, _, _ = open_backbone(speaker_folder)
    other = make_speaker(tmp_path, seed=1)
    found = redhost.Backbone.load(f"hf:{other}", task=redhost.plugins.make_task("generation"))
    with pytest.raises(BackboneMismatchError):
        found.verify(manifest.fingerprint)


def test_a_generating_backbone_is_taken_as_it_is(speaker_model, tmp_path) -> None:
    rows = [redhost.Row(text=str(n), label="x") for n in range(9)]
    with pytest.raises(UsageError, match="a backbone that generates text is taken as it is"):
        new_backbone(
            tmp_path,
            BackbonePlan(
                id="x", source=f"hf:{speaker_model}", task=redhost.plugins.make_task("generation")
            ),
            rows=rows,
        )


def test_a_tokenizer_that_starts_no_text_makes_no_backbone(make_speaker, tmp_path) -> None:
    source = make_speaker(tmp_path / "model", marks={})
    task = redhost.plugins.make_task("generation")
    with pytest.raises(UsageError, match=r"found neither\. Name one in .* tokenizer_config\.json"):
        new_backbone(tmp_path / "new", BackbonePlan(id="x", source=f"hf:{source}", task=task))
    assert not (tmp_path / "new").exists()


def test_pooling_plays_no_part(speaker_model, tmp_path) -> None:
    task, source = redhost.plugins.make_task("generation"), f"hf:{speaker_model}"
    predicted = [
        new_backbone(
            tmp_path / pooling, BackbonePlan(id="x", source=source, pooling=pooling, task=task)
        )
        for pooling in ("last", "mean")
    ]
    assert predicted[0].fingerprint == predicted[1].fingerprint
    assert package_in(tmp_path / "last").is_dir()
