"""What a backbone's fingerprint covers: all that computes, and nothing that does not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from redhost_author.backbone.making import BackbonePlan, new_backbone
from redhost_author.project import package_in
from redhost_author.training.context import open_backbone
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

import redhost
from redhost.core.backbones.feature_cache import cached_encode
from redhost.core.backbones.identity import tokenizer_digest
from redhost.core.tasks import make_task
from redhost.registry.errors import BackboneMismatchError, ManifestError
from redhost.registry.package.checked import Violation
from redhost.registry.package.discover import from_folder
from redhost.registry.package.readers import read_backbone
from redhost.registry.package.safetensors_check import sha256_hex
from redhost.testing import Environment, tiny_backbone

THETA = {"rope_parameters": {"rope_theta": 17.0, "rope_type": "default"}}


def edit(file: Path, **values: Any) -> None:
    """Set keys of a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}, indent=1))


@pytest.fixture
def copy(model_folder: Path, tmp_path: Path) -> Path:
    return shutil.copytree(model_folder, tmp_path / "copy")


def fingerprint(folder: Path) -> str:
    return redhost.Backbone.load(f"hf:{folder}").fingerprint()


def test_backbones_that_differ_only_in_rope_theta_are_two(model_folder: Path, copy: Path) -> None:
    edit(copy / "config.json", **THETA)
    one, other = redhost.Backbone.load(f"hf:{model_folder}"), redhost.Backbone.load(f"hf:{copy}")
    assert not torch.equal(one.encode(["red 12"]), other.encode(["red 12"]))
    assert one.fingerprint() != other.fingerprint()


LOWER = {"type": "Lowercase"}
RARE = {"type": "Replace", "pattern": {"String": "zzz"}, "content": "b"}
ADDED = {
    "id": 5,
    "content": "#",
    "single_word": False,
    "lstrip": True,
    "rstrip": False,
    "normalized": False,
    "special": False,
}
RULES: dict[str, dict[str, Any]] = {
    "a normaliser": {"normalizer": LOWER},
    "a normaliser of rare texts": {"normalizer": RARE},
    "a pre-tokeniser": {"pre_tokenizer": {"type": "Whitespace"}},
    "a post-processor": {
        "post_processor": {"type": "BertProcessing", "sep": ["<pad>", 0], "cls": ["<unk>", 1]}
    },
    "an added token": {"added_tokens": [ADDED]},
}


@pytest.mark.parametrize("what", RULES)
def test_backbones_that_differ_only_in_a_rule_of_the_tokenizer_are_two(
    model_folder: Path, copy: Path, what: str
) -> None:
    edit(copy / "tokenizer.json", **RULES[what])
    assert fingerprint(copy) != fingerprint(model_folder)


@pytest.mark.parametrize("setting", [{"model_max_length": 32}, {"unk_token": None}])
def test_settings_of_the_tokenizer_count(
    model_folder: Path, copy: Path, setting: dict[str, Any]
) -> None:
    edit(copy / "tokenizer_config.json", **setting)
    assert fingerprint(copy) != fingerprint(model_folder)


def test_a_chat_template_counts_where_text_is_generated(copy: Path, generation) -> None:
    def both() -> tuple[str, str]:
        tasks = (make_task("classification"), generation)
        one, other = (redhost.Backbone.load(f"hf:{copy}", task=task) for task in tasks)
        return one.fingerprint(), other.fingerprint()

    edit(copy / "config.json", tie_word_embeddings=True)  # else its head is missing
    before = both()
    (copy / "chat_template.jinja").write_text("{{ messages[0].content }}")
    after = both()
    assert before[0] == after[0] and before[1] != after[1]


def test_bookkeeping_layout_and_state_of_calls_do_not_count(model_folder: Path, copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text())
    rope = {key: config["rope_parameters"][key] for key in reversed(config["rope_parameters"])}
    edit(
        copy / "config.json",
        transformers_version="4.57.0",
        _name_or_path="/somewhere",
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
        id2label={"0": "x"},
        rope_parameters=rope,
    )
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    edit(copy / "tokenizer.json", truncation=cut)
    (copy / "tokenizer.json").write_text(
        json.dumps(json.loads((copy / "tokenizer.json").read_text()))
    )
    assert fingerprint(copy) == fingerprint(model_folder)
    backbone = redhost.Backbone.load(f"hf:{model_folder}", max_tokens=3)
    before = backbone.fingerprint()
    backbone.encode(["a long text that is cut"])
    assert backbone.fingerprint() == before


@pytest.mark.parametrize("plain", [True, False])
def test_either_loader_gives_a_package_one_fingerprint(
    model_folder: Path, copy: Path, tmp_path: Path, plain: bool
) -> None:
    """A further file makes the plain loader leave a folder to transformers."""
    if not plain:
        (copy / "notes.txt").write_text("x")
    manifest = new_backbone(
        tmp_path / "p", BackbonePlan(id="mine", source=f"hf:{copy}", pooling="last", features=None)
    )
    _, loaded, _ = open_backbone(package_in(tmp_path / "p"))
    assert loaded.fingerprint() == manifest.fingerprint == fingerprint(model_folder)
    assert loaded.tokenizer_digest() == manifest.tokenizer


@pytest.fixture
def composed(
    redhost_environment: Environment, redhost_fake_expert: Callable[..., str], tmp_path: Path
) -> redhost.Host:
    redhost_fake_expert("apples")
    host = redhost.Host.open(tmp_path / "home", backbone="tiny-random")
    assert "apples" in host.recompose().experts
    return host


def test_a_backbone_swapped_under_its_manifest_is_refused(
    composed: redhost.Host, redhost_environment: Environment
) -> None:
    """The digests of the files are right; only the fingerprint is that of another configuration."""
    folder = redhost_environment.package("red-backbone-tiny-random")
    edit(folder / "config.json", **THETA)
    manifest = json.loads((folder / "backbone.json").read_text())
    manifest["base"]["files"]["config.json"] = sha256_hex((folder / "config.json").read_bytes())
    (folder / "backbone.json").write_text(json.dumps(manifest))
    redhost_environment.seal("red-backbone-tiny-random")
    with pytest.raises(BackboneMismatchError, match="not what its manifest says"):
        composed.recompose()


def test_a_rebuilt_backbone_takes_no_expert_of_the_other_and_no_feature(
    composed: redhost.Host,
    redhost_environment: Environment,
    redhost_backbone: Path,
    tmp_path: Path,
) -> None:
    before = composed.predict(["apples 3"])
    model = tiny_backbone(tmp_path / "model")
    edit(model / "config.json", **THETA)
    project = tmp_path / "red-backbone-tiny-random"
    new_backbone(project, BackbonePlan(id="tiny-random", source=f"hf:{model}", pooling="mean"))
    redhost_environment.uninstall("red-backbone-tiny-random")
    redhost_environment.install(project)
    with pytest.raises(redhost.RedhostError) as refused:
        composed.recompose()
    assert "apples" in str(refused.value)
    assert composed.predict(["apples 3"]) == before
    old, new = (open_backbone(package_in(p)) for p in (redhost_backbone, project))
    features = []
    for manifest, backbone, _ in (old, new):
        encode = cached_encode(backbone, manifest.fingerprint, tmp_path / "cache")
        features.append(encode(["apples 3"]))
        assert torch.equal(features[-1], backbone.encode(["apples 3"]))
    assert not torch.equal(*features)


REFUSED: dict[str, tuple[str, Any]] = {
    "NaN": ("rms_norm_eps", float("nan")),
    "infinity": ("initializer_range", float("inf")),
    "blocks without end": ("num_hidden_layers", 10**8),
    "one block more than the weights hold": ("num_hidden_layers", 4),
    "no block": ("num_hidden_layers", 0),
    "a width that no tensor has": ("hidden_size", 24),
    "a negative width": ("intermediate_size", -32),
    "an absurd vocabulary": ("vocab_size", 10**12),
    "a vocabulary that no tensor has": ("vocab_size", 98765),
    "a fraction of a width": ("hidden_size", 16.5),
    "a text as a width": ("hidden_size", "16"),
    "heads without end": ("num_attention_heads", 10**7),
    "no place": ("max_position_embeddings", -1),
    "a name for each of 20,000,000 labels": ("num_labels", 2 * 10**7),
    "angles of no base": ("rope_parameters", {"rope_theta": 0.0, "rope_type": "default"}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_value_that_cannot_compute_is_refused_by_name_before_anything_is_built(
    backbone_folder: Path, model_folder: Path, tmp_path: Path, what: str
) -> None:
    key, value = REFUSED[what]
    folder = shutil.copytree(backbone_folder, tmp_path / "red_backbone_toy")
    edit(folder / "config.json", **{key: value})
    manifest = json.loads((folder / "backbone.json").read_text())
    manifest["base"]["files"]["config.json"] = sha256_hex((folder / "config.json").read_bytes())
    (folder / "backbone.json").write_text(json.dumps(manifest))
    [violation, *_] = read_backbone(from_folder(folder)).violations
    assert isinstance(violation, Violation)
    assert violation.code == "base_config" and f"config.json {key}" in violation.field
    source = shutil.copytree(model_folder, tmp_path / "model")
    edit(source / "config.json", **{key: value})
    with pytest.raises(ManifestError, match=f"config.json {key}"):
        new_backbone(tmp_path / "new", BackbonePlan(id="mine", source=f"hf:{source}"))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":' * 950 + b"1" + b"}" * 950,
        b'{"a": ' + b"[" * 950 + b"]" * 950 + b"}",
        b"[]",
        b"{",
        b'{"a": 1, "a": 2}',
        b"\xff",
        b"[" * 9000,
        b'{"a": [' + b"1," * 60_000 + b"1]}",
    ],
)
def test_a_configuration_that_is_none_is_refused(copy: Path, data: bytes) -> None:
    (copy / "config.json").write_bytes(data)
    with pytest.raises(ManifestError, match=r"config\.json"):
        redhost.Backbone.load(f"hf:{copy}")


def test_an_index_may_name_files_of_the_folder_only(copy: Path, tmp_path: Path) -> None:
    (copy / "model.safetensors").rename(tmp_path / "model.safetensors")
    table = {"norm.weight": "../model.safetensors"}
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    with pytest.raises(ManifestError, match="files of the folder"):
        new_backbone(tmp_path / "new", BackbonePlan(id="mine", source=f"hf:{copy}"))


def test_a_folder_with_an_adapter_is_refused(copy: Path, tmp_path: Path) -> None:
    (copy / "adapter_config.json").write_text('{"base_model_name_or_path": "/elsewhere"}')
    with pytest.raises(ManifestError, match="Merge the adapter"):
        new_backbone(tmp_path / "new", BackbonePlan(id="mine", source=f"hf:{copy}"))


def test_a_folder_of_pickles_says_how_to_convert_it(copy: Path, tmp_path: Path) -> None:
    tensors = redhost.Backbone.load(f"hf:{copy}").trunk.model.state_dict()
    (copy / "model.safetensors").unlink()
    torch.save(tensors, copy / "pytorch_model.bin")
    with pytest.raises(redhost.MissingError) as refused:
        new_backbone(tmp_path / "new", BackbonePlan(id="mine", source=f"hf:{copy}"))
    code = refused.value.hint.partition('python -c "')[2].rpartition('"')[0]
    exec(code)  # the sentence's own command
    assert (
        new_backbone(tmp_path / "new", BackbonePlan(id="mine", source=f"hf:{copy}")).base.kind
        == "carried"
    )


PAIRS = "h e 9\nhe l 8\nl o</w> 7\nhel lo</w> 6\n"
PYTHON_TOKENIZERS: dict[str, str] = {"PhobertTokenizer": "vi", "BertweetTokenizer": "en"}


@pytest.mark.parametrize("kind", PYTHON_TOKENIZERS)
def test_tokenizers_in_python_are_carried_and_their_files_count(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "model"
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=12, num_hidden_layers=2, **sizes)).save_pretrained(folder)
    (folder / "vocab.txt").write_text("hello 5\nhe@@ 4\nl@@ 3\nlo 2\nhel@@ 2\n")
    (folder / "bpe.codes").write_text(PAIRS)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    manifest = new_backbone(tmp_path / "one", BackbonePlan(id="mine", source=f"hf:{folder}"))
    assert {"bpe.codes", "vocab.txt"} <= manifest.base.files.keys()
    opened = open_backbone(package_in(tmp_path / "one"))[1]
    assert opened.token_counts(["hello"]) == [3]
    (folder / "bpe.codes").write_text(PAIRS.replace("hel lo</w> 6\n", ""))
    other = new_backbone(tmp_path / "two", BackbonePlan(id="mine", source=f"hf:{folder}"))
    assert other.fingerprint != manifest.fingerprint


def test_a_vocabulary_of_a_kind_that_is_not_carried_is_refused(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = shutil.copytree(model_folder, tmp_path / "model")
    (folder / "words.dat").write_bytes(b"x")
    names = {**PreTrainedTokenizerFast.vocab_files_names, "word_file": "words.dat"}
    monkeypatch.setattr(PreTrainedTokenizerFast, "vocab_files_names", names)
    with pytest.raises(redhost.UsageError, match=r"found words\.dat"):
        new_backbone(tmp_path / "new", BackbonePlan(id="mine", source=f"hf:{folder}"))


def test_stripped_accents_and_accents_left_in_place_have_two_digests() -> None:
    """BertNormalizer strips accents where `strip_accents` is null, not where it is false."""

    def digest(strip: bool | None) -> str:
        made = Tokenizer(models.WordLevel({"[UNK]": 0, "cafe": 1}, unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=strip)
        return tokenizer_digest(PreTrainedTokenizerFast(tokenizer_object=made))

    assert len({digest(None), digest(False)}) == 2
