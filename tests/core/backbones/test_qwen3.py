"""The plain encoder: transformers' bits without transformers, and nothing that is not plain."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from redhost_author.training.context import open_backbone
from transformers import PreTrainedModel

import redhost
from redhost.core.backbones import backbone as backbone_module
from redhost.core.backbones.identity import tokenizer_digest
from redhost.core.backbones.qwen3 import model as qwen3
from redhost.core.backbones.qwen3.package import qwen3_encoder
from redhost.registry.errors import BackboneMismatchError
from redhost.registry.package.manifest import Features

TEXTS = ("red 1", "x", "What is 37 plus 12?", "Ünïcödé ✓ 日本", "  Two\nlines,\ttabs", "long " * 40)

Files = dict[str, bytes]


@pytest.fixture
def files(model_folder: Path) -> Files:
    return {p.name: p.read_bytes() for p in model_folder.iterdir()}


def built(files: Files, **options: Any) -> redhost.plugins.TextEncoder | None:
    return qwen3_encoder(files, **{"pooling": "last", "max_tokens": None, **options})


def changed(files: Files, name: str, **values: object) -> Files:
    return {**files, name: json.dumps({**json.loads(files[name]), **values}).encode()}


def by_transformers(
    files: Files, folder: Path, *, features: Features | None = None
) -> redhost.plugins.TextEncoder:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return redhost.Backbone.load(f"hf:{folder}", features=features).trunk


@pytest.mark.parametrize("features", [None, Features(layers=(0, 2, 3), tokens=8)])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("key_heads", [1, 2])
def test_bits_are_those_of_transformers(
    files: Files, tmp_path: Path, threads: int, key_heads: int, features: Features | None
) -> None:
    if key_heads == 2:  # every head has keys of its own
        tensors = safetensors.torch.load(files["model.safetensors"])
        doubled = {
            n: torch.cat([t, -t]) if n.endswith(("k_proj.weight", "v_proj.weight")) else t
            for n, t in tensors.items()
        }
        files = changed(files, "config.json", num_key_value_heads=2)
        files["model.safetensors"] = safetensors.torch.save(doubled, metadata={"format": "pt"})
    ours = built(files, features=features)
    theirs = by_transformers(files, tmp_path, features=features)
    torch.set_num_threads(threads)
    assert ours is not None
    assert torch.equal(ours.encode(TEXTS), theirs.encode(TEXTS))
    assert [ours.tokens(t) for t in TEXTS] == [theirs.tokens(t) for t in TEXTS]
    assert tokenizer_digest(ours.tokenizer) == tokenizer_digest(theirs.tokenizer)
    assert ours.stated == theirs.stated
    mine, yours = ours.model.state_dict(), theirs.model.state_dict()
    assert [*mine] == [*yours]
    assert all(torch.equal(mine[n], yours[n]) for n in mine)


def test_texts_are_cut_where_transformers_cuts(files: Files, tmp_path: Path) -> None:
    ours, theirs = built(files, max_tokens=7), by_transformers(files, tmp_path)
    assert ours is not None
    theirs.max_tokens = 7
    assert [ours.tokens(t) for t in TEXTS] == [theirs.tokens(t) for t in TEXTS]
    assert max(len(ours.tokens(t)) for t in TEXTS) == 7


def test_control_that_attends_both_ways_gives_other_bits(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend = qwen3.functional.scaled_dot_product_attention

    def both_ways(*parts: Any, is_causal: bool, **options: Any) -> torch.Tensor:
        return attend(*parts, **options)

    theirs = by_transformers(files, tmp_path).encode(TEXTS)
    monkeypatch.setattr(qwen3.functional, "scaled_dot_product_attention", both_ways)
    ours = built(files)
    assert ours is not None
    assert not torch.equal(ours.encode(TEXTS), theirs)


def no_tensor(files: Files) -> Files:
    tensors = safetensors.torch.load(files["model.safetensors"])
    del tensors["norm.weight"]
    return {**files, "model.safetensors": safetensors.torch.save(tensors)}


def truncating(files: Files) -> Files:
    cut = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    return changed(files, "tokenizer.json", truncation=cut)


NOT_PLAIN: dict[str, Callable[[Files], Files]] = {
    "another architecture": lambda f: changed(f, "config.json", model_type="llama"),
    "a key nobody here knows": lambda f: changed(f, "config.json", quantization_config={}),
    "biases": lambda f: changed(f, "config.json", attention_bias=True),
    "sliding windows": lambda f: changed(f, "config.json", use_sliding_window=True),
    "stretched positions": lambda f: changed(
        f, "config.json", rope_parameters={"rope_theta": 1e4, "rope_type": "linear", "factor": 2.0}
    ),
    "fewer kinds of layers": lambda f: changed(f, "config.json", layer_types=["full_attention"]),
    "no configuration": lambda f: {**f, "config.json": b"{"},
    "another file": lambda f: {**f, "vocab.txt": b""},
    "a missing tensor": no_tensor,
    "other sizes": lambda f: changed(f, "config.json", intermediate_size=8),
    "a tokenizer of its own class": lambda f: changed(
        f, "tokenizer_config.json", tokenizer_class="Qwen2Tokenizer"
    ),
    "a token to be added": lambda f: changed(f, "tokenizer_config.json", pad_token="<new>"),
    "a tokenizer that cuts": truncating,
    "no tokenizer": lambda f: {**f, "tokenizer.json": b"{}"},
}


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_transformers(files: Files, what: str) -> None:
    assert built(files) is not None
    assert built(NOT_PLAIN[what](files)) is None


def test_a_package_opens_alike_either_way(
    backbone_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, ours, _ = open_backbone(backbone_folder)
    monkeypatch.setattr(backbone_module, "qwen3_encoder", lambda *_, **__: None)
    _, theirs, _ = open_backbone(backbone_folder)
    assert isinstance(ours.trunk.model, qwen3.Qwen3)
    assert isinstance(theirs.trunk.model, PreTrainedModel)
    assert torch.equal(ours.encode(TEXTS), theirs.encode(TEXTS))


def test_what_is_built_is_held_to_the_fingerprint(
    backbone_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = qwen3.Qwen3.load_state_dict

    def other(model: qwen3.Qwen3, tensors: dict[str, torch.Tensor], **options: Any) -> Any:
        return load(model, {n: 2 * t for n, t in tensors.items()}, **options)

    monkeypatch.setattr(qwen3.Qwen3, "load_state_dict", other)
    with pytest.raises(BackboneMismatchError):
        open_backbone(backbone_folder)
