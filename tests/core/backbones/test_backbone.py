"""The backbone: any architecture, canonical features, identity by content, deltas."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest
import redhost_author
import safetensors.torch
import torch
from redhost_author.backbone.adapt import AdaptSettings, adapt, delta
from redhost_author.training.context import open_backbone
from redhost_author.training.packaging import save_backbone
from transformers import BertConfig, BertModel, BertTokenizer

import redhost
from redhost.core.backbones.encoder import BATCH, blocks_of
from redhost.registry.errors import BackboneMismatchError, MissingError, UsageError

TEXTS = ["red 1 a", "green 22 c", "blue 3", "x", "red 1 b"]


def test_bits_of_a_row_depend_on_its_text_alone(bare: redhost.Backbone) -> None:
    many = [f"text number {n:03d}" for n in range(3 * BATCH)]
    h = bare.encode(many)
    assert torch.equal(bare.encode(many[7:8])[0], h[7])
    assert torch.equal(bare.encode(list(reversed(many))), h.flip(0))


@pytest.mark.parametrize("threads", [1, 2])
def test_bits_hold_for_any_number_of_threads(bare: redhost.Backbone, threads: int) -> None:
    torch.set_num_threads(threads)
    h = bare.encode(TEXTS)
    assert torch.equal(torch.cat([bare.encode([t]) for t in TEXTS]), h)


def test_last_and_mean_pooling(model_folder: Path) -> None:
    last = redhost.Backbone.load(f"hf:{model_folder}", pooling="last")
    mean = redhost.Backbone.load(f"hf:{model_folder}", pooling="mean")
    ids = torch.tensor([last.trunk.tokens("red 1")])
    with torch.inference_mode():
        states = last.trunk.model(input_ids=ids).last_hidden_state[0]
    torch.testing.assert_close(last.encode(["red 1"])[0], states[-1])
    torch.testing.assert_close(mean.encode(["red 1"])[0], states.mean(0))


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "##s", *map(str, range(10))]
    (folder / "vocab.txt").write_text("\n".join(words))
    tokenizer = BertTokenizer(vocab=str(folder / "vocab.txt"))
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_an_encoder_only_architecture_works(bert_folder: Path) -> None:
    backbone = redhost.Backbone.load(f"hf:{bert_folder}", pooling="mean")
    assert backbone.encode(["red 1 2", "green"]).shape == (2, 16)
    name, blocks = blocks_of(backbone.trunk.model)
    assert (name, len(blocks)) == ("encoder.layer", 3)
    adapted = adapt_blocks(backbone, last_blocks=1)
    changed = delta(backbone.trunk, adapted.trunk)
    assert changed and all(n.startswith("encoder.layer.2.") for n in changed)


def test_fingerprint_is_content(bare: redhost.Backbone, model_folder: Path) -> None:
    again = redhost.Backbone.load(f"hf:{model_folder}")
    assert bare.fingerprint() == again.fingerprint()
    state = again.trunk.model.state_dict()
    name = next(iter(state))
    state[name].view(-1)[0] += 1e-3
    assert bare.fingerprint() != again.fingerprint()


def test_fingerprint_sees_pooling_norm_classifier_and_labels(backbone: redhost.Backbone) -> None:
    prints = {
        b.fingerprint()
        for b in (
            backbone,
            dataclasses.replace(backbone, eps=1e-6),
            dataclasses.replace(backbone, classifier=None, labels=()),
            dataclasses.replace(backbone, labels=backbone.labels[::-1]),
        )
    }
    mean = dataclasses.replace(backbone, trunk=pooled(backbone, "mean"))
    assert len(prints | {mean.fingerprint()}) == 5


def pooled(backbone: redhost.Backbone, pooling: str) -> object:
    from redhost.core.backbones.encoder import TextEncoder

    return TextEncoder(
        model=backbone.trunk.model,
        tokenizer=backbone.trunk.tokenizer,
        pooling=pooling,  # type: ignore[arg-type]
    )


def adapt_blocks(
    backbone: redhost.Backbone, *, last_blocks: int, seed: int = 0
) -> redhost.Backbone:
    return adapt(
        backbone,
        [redhost.Row(text=f"{w} {n}", label=w[0]) for n, w in enumerate(("red", "green") * 2, 1)],
        labels=["r", "g"],
        settings=AdaptSettings(last_blocks=last_blocks, epochs=3, seed=seed),
    )


@pytest.mark.parametrize("last_blocks", [0, 1, 2])
def test_adapt_changes_the_top_blocks_and_nothing_else(
    bare: redhost.Backbone, last_blocks: int
) -> None:
    before = bare.fingerprint()
    adapted = adapt_blocks(bare, last_blocks=last_blocks)
    changed = delta(bare.trunk, adapted.trunk)
    top = tuple(f"layers.{i}." for i in range(3 - last_blocks, 3))
    assert all(n.startswith(top) or n == "norm.weight" for n in changed)
    assert bool(changed) == (last_blocks > 0)
    assert bare.fingerprint() == before
    assert not any(p.requires_grad for p in adapted.trunk.model.parameters())


def test_adapt_is_deterministic(bare: redhost.Backbone) -> None:
    prints = [adapt_blocks(bare, last_blocks=1, seed=s).fingerprint() for s in (0, 0, 1)]
    assert prints[0] == prints[1] != prints[2]


def test_adapt_refuses_more_blocks_than_there_are(bare: redhost.Backbone) -> None:
    with pytest.raises(UsageError, match="0 to 3"):
        adapt_blocks(bare, last_blocks=4)


def test_a_delta_package_gives_the_adapted_backbone_back(
    bare: redhost.Backbone, model_folder: Path, tmp_path: Path
) -> None:
    adapted = adapt_blocks(bare, last_blocks=1)
    changed = delta(bare.trunk, adapted.trunk)
    folder = redhost_author.write_project(
        tmp_path, kind="backbone", package_id="d", summary="a delta"
    )
    save_backbone(
        folder,
        dataclasses.replace(adapted, name="d"),
        base={p.name: p.read_bytes() for p in model_folder.iterdir()},
        delta=changed,
    )
    assert safetensors.torch.load_file(folder / "delta.safetensors").keys() == changed.keys()
    _, loaded, _ = open_backbone(folder)
    assert loaded.fingerprint() == adapted.fingerprint()
    assert torch.equal(loaded.encode(TEXTS), adapted.encode(TEXTS))


def test_a_backbone_that_is_not_its_fingerprint_is_refused(backbone: redhost.Backbone) -> None:
    with pytest.raises(BackboneMismatchError, match="sha256:000000000000…, found sha256:"):
        backbone.verify("0" * 64)


@pytest.mark.parametrize("source", ["Qwen/Qwen3-0.6B", "ftp:somewhere", "hf:"])
def test_unknown_sources_are_named(source: str) -> None:
    with pytest.raises(UsageError, match="hf:NAME_OR_DIR or gguf:FILE"):
        redhost.Backbone.load(source)


def test_a_folder_without_a_model_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="cannot be loaded"):
        redhost.Backbone.load(f"hf:{tmp_path}")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_folder_with_a_damaged_file_is_one_clear_error(
    model_folder: Path, tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / name).write_bytes(b"{}")
    with pytest.raises(MissingError, match="cannot be loaded"):
        redhost.Backbone.load(f"hf:{folder}")


def test_an_empty_text_is_refused(bare: redhost.Backbone) -> None:
    with pytest.raises(UsageError, match="no tokens"):
        bare.encode([""])


@pytest.mark.parametrize(
    "options", [{"features": "last"}, {"pooling": None}, {"pooling": "nonsense"}]
)
def test_an_unknown_choice_is_refused_when_it_is_loaded(model_folder, options) -> None:
    with pytest.raises(UsageError):
        redhost.Backbone.load(f"hf:{model_folder}", **options)
