"""Checkpoints as people have them: with heads, without poolers, and with tensors gone."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.project import package_in
from redhost_author.training.context import open_for_training
from warm_start import warm_command

import redhost
from redhost.testing import tiny_backbone

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 66,
    "pad_token_id": 0,
}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "RobertaForMaskedLM": ("RobertaConfig", SIZES),
    "BertForMaskedLM": ("BertConfig", SIZES),
    "MPNetForMaskedLM": ("MPNetConfig", SIZES),
    "RobertaForSequenceClassification": ("RobertaConfig", {**SIZES, "num_labels": 3}),
    "BertForPreTraining": ("BertConfig", SIZES),
    "GPT2LMHeadModel": ("GPT2Config", GPT2),
    "ElectraForPreTraining": ("ElectraConfig", SIZES),
    "LukeForMaskedLM": ("LukeConfig", {**SIZES, "entity_vocab_size": 9, "entity_emb_size": 8}),
}


def write(folder: Path, kind: str) -> Path:
    """Write a random model of a kind, with the tokenizer of `tiny_backbone`."""
    words = transformers.AutoTokenizer.from_pretrained(tiny_backbone(folder.with_suffix(".words")))
    name, sizes = KINDS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, name)(vocab_size=len(words), **sizes)
        getattr(transformers, kind)(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def change(folder: Path, edit: Any) -> None:
    """Change the tensors of a folder."""
    tensors = edit(safetensors.torch.load_file(folder / "model.safetensors"))
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


ELSEWHERE = """
import sys
from contextlib import nullcontext
from pathlib import Path
from redhost_author.backbone import making as module

with module.BackboneTrial() as trial:  # one for all of them: each start takes seconds
    module.BackboneTrial = lambda: nullcontext(trial)
    for place in sys.argv[1:]:
        plan = module.BackbonePlan(id="mine", source=f"hf:{place}/model", features=None)
        print(module.new_backbone(Path(place) / "there", plan).fingerprint)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder with a random model of each kind."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    for kind, folder in folders.items():
        write(folder / "model", kind)
    return folders


@pytest.fixture(scope="module")
def elsewhere(models: dict[str, Path]) -> dict[str, str]:
    """The fingerprints of the backbones that another process makes of them, by kind."""
    done = subprocess.run(
        warm_command("-c", ELSEWHERE, *map(str, models.values())),
        check=True,
        capture_output=True,
        text=True,
    )
    return dict(zip(models, done.stdout.split()[-len(models) :], strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_with_any_head_is_one_backbone_in_every_process(
    kind: str, models: dict[str, Path], elsewhere: dict[str, str], tmp_path: Path
) -> None:
    source = models[kind] / "model"
    manifest = new_backbone(
        tmp_path / "here", BackbonePlan(id="mine", source=f"hf:{source}", features=None)
    )
    assert elsewhere[kind] == manifest.fingerprint
    context = open_for_training(package_in(tmp_path / "here"), cache=tmp_path / "cache")
    assert context.backbone.fingerprint() == manifest.fingerprint
    plain = transformers.AutoModel.from_pretrained(source).eval()
    ids = torch.tensor([context.backbone.trunk.tokens("What is red?")])
    with torch.no_grad():
        states = plain(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    h = context.backbone.encode(["What is red?"])
    torch.testing.assert_close(h, states.mean(1), rtol=1e-5, atol=1e-5)


def test_a_pooler_is_neither_digested_nor_held(tmp_path: Path) -> None:
    source = write(tmp_path / "model", "BertForPreTraining")
    one = redhost.Backbone.load(f"hf:{source}")
    assert not [name for name in one.trunk.model.state_dict() if "pooler" in name]

    def moved(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {n: 2 * t if "pooler" in n else t for n, t in tensors.items()}

    change(source, moved)
    assert redhost.Backbone.load(f"hf:{source}").fingerprint() == one.fingerprint()


def test_a_missing_block_is_refused_by_its_tensors(tmp_path: Path) -> None:
    source = write(tmp_path / "model", "RobertaForMaskedLM")
    change(source, lambda tensors: {n: t for n, t in tensors.items() if ".layer.0." not in n})
    with pytest.raises(redhost.errors.IntegrityError) as refused:
        new_backbone(tmp_path / "new", BackbonePlan(id="mine", source=f"hf:{source}"))
    assert "none of encoder.layer.0.attention.output.LayerNorm.bias" in refused.value.reason
    assert "and 13 more" in refused.value.reason
    assert not (tmp_path / "new").exists()


def test_a_tensor_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    source, name = write(tmp_path / "model", "BertForMaskedLM"), "encoder.layer.1.output.dense.bias"
    change(source, lambda tensors: {**tensors, f"bert.{name}": torch.zeros(7)})
    with pytest.raises(redhost.errors.IntegrityError, match=rf"another shape of {name} \(7,\)"):
        redhost.Backbone.load(f"hf:{source}")


def test_a_block_too_many_is_refused_by_its_tensors(tmp_path: Path) -> None:
    source = write(tmp_path / "model", "BertForMaskedLM")

    def longer(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        more = {n.replace(".layer.1.", ".layer.2."): t.clone() for n, t in tensors.items()}
        return {**tensors, **more}

    change(source, longer)
    with pytest.raises(redhost.errors.IntegrityError, match=r"found also .*encoder\.layer\.2"):
        redhost.Backbone.load(f"hf:{source}")
