"""GGUF files: read once, and the library that reads them is left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

import redhost
from redhost.registry.errors import MissingError

LIBRARY = ("GGUFReader", "get_tensor_name_map")
WIDTH, BLOCKS, FFN = 16, 2, 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A small Llama whose words are letters."""
    path, random = tmp_path / "small.gguf", np.random.default_rng(0)
    tokens = ["<unk>", "<s>", "</s>", "Ġ", "ab", *"abcdefghijklmnopqrstuvwxyz"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(BLOCKS)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3, *[1] * (len(tokens) - 3)])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for n in range(BLOCKS):
        shapes |= {f"blk.{n}.{name}": (WIDTH,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{n}.attn_{x}": (WIDTH, WIDTH) for x in ("q", "k", "v", "output")}
        shapes |= {f"blk.{n}.ffn_{x}": (FFN, WIDTH) for x in ("gate", "up")}
        shapes[f"blk.{n}.ffn_down"] = (WIDTH, FFN)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_is_read_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, init = list[Path](), gguf.GGUFReader.__init__

    def counting(reader: Any, path: Any, *args: Any) -> None:
        read.append(Path(path))
        init(reader, path, *args)

    monkeypatch.setattr(gguf.GGUFReader, "__init__", counting)
    backbone = redhost.Backbone.load(f"gguf:{file}", pooling="mean")
    assert read == [file]
    assert bool(torch.isfinite(backbone.encode(["a cat"])).all())


def test_another_file_under_the_same_name_is_read_anew(file: Path) -> None:
    first = redhost.Backbone.load(f"gguf:{file}").fingerprint()
    data = bytearray(file.read_bytes())
    data[-1] ^= 0x01
    file.write_bytes(data)
    assert redhost.Backbone.load(f"gguf:{file}").fingerprint() != first


def test_the_library_is_left_as_it_was(file: Path) -> None:
    before = [getattr(gguf, name) for name in LIBRARY]
    redhost.Backbone.load(f"gguf:{file}")
    assert [getattr(gguf, name) for name in LIBRARY] == before
    file.write_bytes(b"GGUF, but no more")
    with pytest.raises(MissingError, match="cannot be loaded"):
        redhost.Backbone.load(f"gguf:{file}")
    assert [getattr(gguf, name) for name in LIBRARY] == before
